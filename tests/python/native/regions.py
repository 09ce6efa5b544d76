# SPDX-License-Identifier: Apache-2.0
"""Regions of small functions, traced by AOTAutograd and compiled natively."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import default_partition

from agspeed import native
from agspeed.graph_spec.export import export

Function = Callable[..., Any]


@dataclass
class Traced:
    """The two ATen graphs of a function, and the counts that a signature needs."""

    graphs: dict[str, fx.GraphModule]
    num_outputs: int
    tangents: list[int]


def trace(fn: Function, inputs: Sequence[torch.Tensor], dynamic: bool = False) -> Traced:
    """Runs AOTAutograd on copies of `inputs`. Requires: `fn` returns a tuple of tensors."""
    graphs: dict[str, fx.GraphModule] = {}

    def keep(role: str) -> Callable[..., Any]:
        def compiler(graph: fx.GraphModule, _example_inputs: Sequence[Any]) -> Any:
            graphs[role] = graph
            return make_boxed_func(graph.forward)

        return compiler

    copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    with functorch_config.patch(donated_buffer=False, force_non_lazy_backward_lowering=True):
        compiled = aot_function(
            fn,
            fw_compiler=keep("forward"),
            bw_compiler=keep("backward"),
            partition_fn=default_partition,
            dynamic=dynamic,
        )
        outputs = compiled(*copies)
        tangents = [index for index, output in enumerate(outputs) if output.requires_grad]
        if tangents and "backward" not in graphs:  # the backward is compiled when it first runs
            torch.autograd.backward([outputs[index].sum() for index in tangents])
    return Traced(graphs, len(outputs), tangents)


def _is_symint(node: Any) -> bool:
    return isinstance(node, int) or (
        isinstance(node, fx.Node) and isinstance(node.meta.get("val"), (int, torch.SymInt))
    )


def make_region(
    fn: Function,
    inputs: Sequence[torch.Tensor],
    *,
    mutated: Sequence[int] = (),
    dynamic: bool = False,
    code: str = "program",
    **changes: Any,
) -> Any:
    """Returns a `_native.Region` of `fn`, run by a "program" or by "python". `changes` override keys of its
    signature."""
    traced = trace(fn, inputs, dynamic)
    module = native.load()
    assert module is not None, native.why_missing()
    (returned,) = traced.graphs["forward"].graph.output_node().args
    saved = returned[len(mutated) + traced.num_outputs :]
    symints = sum(map(_is_symint, saved))
    signature = {
        "name": "test",
        "requires_grad": [x.requires_grad for x in inputs],
        "num_outputs": traced.num_outputs,
        "mutated_inputs": list(mutated),
        "tangents": traced.tangents if "backward" in traced.graphs else [],
        "num_saved_tensors": len(saved) - symints,
        "num_saved_symints": symints,
        "fallback": fn,
        "replay": fn,
    }
    if code == "python":
        forward, backward = map(make_boxed_func, (traced.graphs["forward"], traced.graphs["backward"]))
        return module.Region((forward, (backward,)), signature | changes)
    specs = {name: export(graph, lift_constants=False).to_json() for name, graph in traced.graphs.items()}
    return module.Region(module.compile(specs, {}), signature | changes)


def native_region(code: Any, **signature: Any) -> Any:
    """Returns a `_native.Region` of two callables with one output."""
    module = native.load()
    assert module is not None, native.why_missing()
    return module.Region(code, {"name": "test", "num_outputs": 1, "fallback": None, "replay": None} | signature)
