# SPDX-License-Identifier: Apache-2.0
"""Checkpointed parts of a graph under every torch: run once in eager calls, recomputed in compiled backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from agspeed.backends.aot import trace_for_aten
from agspeed.backends.joint import fake_inputs
from agspeed.torch_compat.checkpoint import CHECKPOINT, run_part, with_plain_parts

pytestmark = pytest.mark.smoke

Function = Callable[[Tensor], Tensor]


def part(x: Tensor) -> Tensor:
    return torch.tanh(x.sigmoid().cos().exp())


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(part, x, use_reentrant=False)  # type: ignore[no-any-return]


def nested(x: Tensor) -> Tensor:
    return checkpoint(lambda y: checkpointed(y) * y, x, use_reentrant=False)  # type: ignore[no-any-return]


def capture(function: Function, x: Tensor) -> fx.GraphModule:
    found: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        found.append(with_plain_parts(graph))
        return found[-1].forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(x)
    return found[0]


def num_saved(function: Function) -> int:
    """The number of tensors that the compiled forward of `function` keeps for the backward."""
    graph = capture(function, torch.randn(4, 8, requires_grad=True))
    joint = trace_for_aten(graph, fake_inputs(graph))
    assert joint.signature is not None
    return int(joint.signature.num_saved_tensors)


@pytest.mark.parametrize("function", [checkpointed, nested])
def test_what_a_part_computes_is_not_saved_for_the_backward(function: Function) -> None:
    assert num_saved(function) == 1  # the input
    assert num_saved(part) > 1


@pytest.mark.parametrize("function", [checkpointed, nested])
def test_all_plain_parts_are_replaced(function: Function) -> None:
    graph = capture(function, torch.randn(4, requires_grad=True))
    modules = [module for module in graph.modules() if isinstance(module, fx.GraphModule)]
    calls = [node.target for module in modules for node in module.graph.nodes if node.op == "call_function"]
    assert CHECKPOINT not in calls and calls.count(run_part) == (2 if function is nested else 1)


def test_the_graph_draws_what_eager_draws() -> None:
    def dropping(x: Tensor) -> Tensor:
        return checkpoint(functional.dropout, x, 0.5, use_reentrant=False)  # type: ignore[no-any-return]

    graph = capture(dropping, torch.ones(64, requires_grad=True))
    results = []
    for run in (lambda x: graph(x)[0], dropping):
        torch.manual_seed(3)
        x = torch.ones(64, requires_grad=True)
        y = run(x)
        y.sum().backward()
        results.append((y.detach(), x.grad, torch.rand(2)))
    for mine, eager in zip(*results, strict=True):
        assert torch.equal(mine, eager)


def test_a_selectively_checkpointed_part_stays_torchs() -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.tanh.default])

    def selective(x: Tensor) -> Tensor:
        return checkpoint(part, x, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]

    graph = capture(selective, torch.randn(4, requires_grad=True))
    assert graph.graph.find_nodes(op="call_function", target=CHECKPOINT)
