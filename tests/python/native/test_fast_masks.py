# SPDX-License-Identifier: Apache-2.0
"""Dropout in compiled code: the masks of eager's generator, and which dropouts are replaced by the fast operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from agspeed import native
from agspeed.backends import CompileOptions, candidate
from agspeed.backends.fast_masks import draw_fast

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_aten = torch.ops.aten


def _of_two(x: Tensor) -> Tensor:
    return functional.dropout(x, 0.1) + functional.dropout(x.exp(), 0.1)


def _of_all(x: Tensor) -> Tensor:
    return functional.dropout(x, 1.0) + functional.dropout(x, 0.5)


def _of_halves(x: Tensor) -> Tensor:
    return functional.dropout(x.bfloat16(), 0.3).float() * x


def _transposed(x: Tensor) -> Tensor:
    return functional.dropout(x.t().sin(), 0.4) + functional.dropout(x, 0.2).t()


@pytest.mark.parametrize(
    "function", [_of_two, _of_all, _of_halves, _transposed], ids=lambda function: function.__name__
)
@pytest.mark.parametrize("name", ["aot", "native", pytest.param("inductor", marks=pytest.mark.slow)])
def test_masks_and_the_generators_state_are_eagers(name: str, function: Callable[[Tensor], Tensor]) -> None:
    if reason := candidate(name).unavailable():
        pytest.skip(f"{name} cannot run: {reason}")

    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        return candidate(name).compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads()))

    def run(called: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.linspace(-2, 2, 33 * 17).view(33, 17).requires_grad_()
        torch.manual_seed(8)
        result = called(x)
        result.square().sum().backward()
        assert x.grad is not None
        return result.detach(), x.grad, torch.get_rng_state()

    torch._dynamo.reset()
    got, wanted = run(torch.compile(function, backend=backend, fullgraph=True)), run(function)
    # Fused code rounds 16-bit values less often than eager.
    torch.testing.assert_close(got[:2], wanted[:2], rtol=2**-6 if function is _of_halves else 1e-5, atol=1e-5)
    assert got[2].equal(wanted[2])


def _dropout(x: Tensor, probability: float = 0.2, is_training: bool = True) -> Tensor:
    result: Tensor = _aten.native_dropout.default(x, probability, is_training)[0]
    return result


@pytest.mark.parametrize(
    ("function", "is_replaced"),
    [
        (lambda x: _dropout(x), True),
        (lambda x: _dropout(x, 1.0), True),
        (lambda x: _dropout(x.double()), True),
        (lambda x: _dropout(x, 0.0), False),
        (lambda x: _dropout(x, is_training=False), False),
        (lambda x: _dropout(x.t()), False),
    ],
    ids=["plain", "all", "double", "none", "not training", "transposed"],
)
def test_dropouts_that_are_replaced(function: Callable[[Tensor], Tensor], is_replaced: bool) -> None:
    graph = make_fx(function, tracing_mode="fake")(torch.ones(3, 4))
    draw_fast(graph)
    assert is_replaced == (not graph.graph.find_nodes(op="call_function", target=_aten.native_dropout.default))


def test_dropouts_of_symbolic_sizes_stay() -> None:
    graph = make_fx(lambda x: _dropout(x), tracing_mode="symbolic")(torch.ones(3, 4))
    draw_fast(graph)
    assert graph.graph.find_nodes(op="call_function", target=_aten.native_dropout.default)
