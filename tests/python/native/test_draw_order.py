# SPDX-License-Identifier: Apache-2.0
"""Inductor's code draws random numbers in eager's order, no matter which operators it fuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate


def _drawn_early_by_fusion(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """The first operation and the one with the last draw both read `y`. Fused into one kernel, the last draw comes
    first."""
    early = y.sin() * 2
    first = functional.dropout(x, 0.5)
    second = functional.dropout(y, 0.5)
    return early, first * 3, second.cos() + y


def _many(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    drawn = [functional.dropout(x * k, 0.1 * k) + torch.rand_like(y) for k in range(1, 8)]
    return tuple(reversed(drawn))


@pytest.mark.slow
@pytest.mark.parametrize("is_training", [False, True], ids=["without_gradients", "training"])
@pytest.mark.parametrize("function", [_drawn_early_by_fusion, _many], ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", ["inductor", "inductor-max-autotune"])
def test_numbers_are_drawn_in_eagers_order(name: str, function: Any, is_training: bool) -> None:
    if reason := candidate(name).unavailable():
        pytest.skip(f"{name} cannot run: {reason}")

    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        return candidate(name).compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads()))

    torch._dynamo.reset()
    inputs = [torch.randn(32, 48, requires_grad=is_training) for _ in range(2)]
    torch.manual_seed(4)
    wanted = function(*inputs)
    torch.manual_seed(4)
    got = torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    torch.testing.assert_close(got, wanted)
