# SPDX-License-Identifier: Apache-2.0
"""Checkpointed parts of a graph: how they run, and how AOTAutograd's partitioner recognises them.

Dynamo puts a checkpointed part into a graph as a call of the operator `tag_activation_checkpoint`. torch 2.11's
operator runs the part once; under tracing, it marks the results that the partitioner may compute again. Since 2.12, the
operator also checkpoints in eager calls: the backward runs the part again, with other random numbers and a second
update of buffers. `with_plain_parts` restores 2.11's behaviour under every torch, so that a graph computes the same
everywhere. Stateless; any thread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.traceback import has_preserved_node_meta
from torch.utils.checkpoint import CheckpointPolicy

from agspeed.torch_compat.part import Part

CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
"""Torch's operator: ``tag_activation_checkpoint(body, *inputs, **options)``."""
PART = Part("checkpoint", __name__, needs=("torch._higher_order_ops.wrap.uid",))


def run_part(body: fx.GraphModule, *args: Any, **_: Any) -> Any:
    """Replaces `CHECKPOINT` in a graph. Under tracing, it marks the operators of `body`, so that the partitioner may
    compute their results again."""
    if not has_preserved_node_meta():
        return body(*args)
    number = _next_number()
    for node in body.graph.nodes:
        if node.op in ("call_function", "call_method", "call_module"):
            node.meta["ac_graph_id"] = number
            node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    return fx.Interpreter(body).run(*args)


def with_plain_parts(graph: fx.GraphModule) -> fx.GraphModule:
    """Changes `graph` in place so that `run_part` runs its checkpointed parts, nested ones included.

    A selectively checkpointed part keeps torch's operator, because its policy decides what is computed again.
    """
    for module in graph.modules():
        if isinstance(module, fx.GraphModule) and (calls := _plain_calls(module)):
            for call in calls:
                call.target = run_part
            module.recompile()
    return graph


def _plain_calls(module: fx.GraphModule) -> list[fx.Node]:
    calls = module.graph.find_nodes(op="call_function", target=CHECKPOINT)
    return [call for call in calls if getattr(module, call.args[0].target).meta.get("_checkpoint_context_fn") is None]


def _next_number() -> int:
    """Returns a number that tells parts apart for the partitioner. Later parts have larger numbers.

    It comes from torch's own counter, because a graph may also contain selectively checkpointed parts.
    """
    from torch._higher_order_ops.wrap import uid

    return next(uid)
