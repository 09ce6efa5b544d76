# SPDX-License-Identifier: Apache-2.0
"""Operators whose own results differ from run to run, as sums by atomic additions on a GPU do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from agspeed.tuning.gate.check import Policy, check


class Unsteady:
    """x + 1, whose element 0 is off in every second run in its own precision, beside a steady result."""

    def __init__(self, size: float) -> None:
        self._size, self._runs = size, 0

    def __call__(self, x: torch.Tensor) -> Sequence[Any]:
        self._runs += x.dtype == torch.float32
        wobble = torch.zeros_like(x)
        if x.dtype == torch.float32 and self._runs % 2 == 0:
            wobble[0] = self._size
        return x + 1 + wobble, torch.index_add(x, 0, torch.tensor([0]), x[:1])


def plain(x: torch.Tensor) -> Sequence[Any]:
    return x + 1, torch.index_add(x, 0, torch.tensor([0]), x[:1])


def slightly_off(x: torch.Tensor) -> Sequence[Any]:
    first, second = plain(x)
    first[0] += 5e-4
    return first, second


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    return [torch.linspace(1, 2, 64)]


def test_what_eager_s_runs_differ_by_counts_as_its_error(inputs: list[torch.Tensor]) -> None:
    assert not check(slightly_off, Unsteady(1e-3), inputs, Policy(is_steady=True)).accepted
    assert check(slightly_off, Unsteady(1e-3), inputs, Policy(is_steady=False)).accepted


def test_more_than_that_is_rejected(inputs: list[torch.Tensor]) -> None:
    def wrong(x: torch.Tensor) -> Sequence[Any]:
        first, second = plain(x)
        return first * 1.1, second

    assert not check(wrong, Unsteady(1e-3), inputs, Policy(is_steady=False)).accepted


def test_exact_numerics_name_the_operators(inputs: list[torch.Tensor]) -> None:
    verdict = check(plain, Unsteady(1e-3), inputs, Policy("exact", is_steady=False))
    assert not verdict.accepted
    assert "differ from run to run in output 0" in verdict.reason and "index_add" in verdict.reason, verdict.reason


def test_steady_eager_is_compared_bit_for_bit_as_ever(inputs: list[torch.Tensor]) -> None:
    assert check(plain, plain, inputs, Policy("exact", is_steady=False)).accepted
