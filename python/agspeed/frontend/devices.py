# SPDX-License-Identifier: Apache-2.0
"""Whether everything that a target works on is whole and on the CPU.

Steps are timed by the host's clock and metered by the host's allocator. A device computes behind the host's back, so
what either of them says about it is wrong: whatever is not on the CPU stays eager until devices have both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from agspeed.tuning.database_key import tensors_in


def why_eager(tensors: Iterable[torch.Tensor]) -> str | None:
    """Why a target that works on `tensors` stays eager, for the first of which that holds; None: it need not."""
    for tensor in tensors:
        if _is_sharded(tensor):
            return (
                "its parameters are sharded (DTensor), by fully_shard or a tensor-parallel plan, "
                "and sharded modules are not compiled yet"
            )
        if tensor.device.type == "meta":
            return 'it works on the device meta, which holds no values: optimize it after model.to_empty(device="cpu")'
        if tensor.device.type != "cpu":
            return f"it works on the device {tensor.device}, and only what runs on the CPU can be timed and metered yet"
    return None


def _is_sharded(tensor: torch.Tensor) -> bool:
    home = sys.modules.get("torch.distributed.tensor")  # where nobody has loaded it, there are none
    return home is not None and isinstance(tensor, home.DTensor)


def graph_tensors(gm: fx.GraphModule) -> Iterable[torch.Tensor]:
    """The inputs and intermediate results of a graph captured by Dynamo, as fake tensors."""
    return tensors_in([node.meta.get("example_value") for node in gm.graph.nodes])


def module_tensors(module: torch.nn.Module) -> Iterable[torch.Tensor]:
    """Parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def call_tensors(args: Any, kwargs: Any) -> Iterable[torch.Tensor]:
    """The tensors among a call's arguments."""
    return tensors_in((args, kwargs))
