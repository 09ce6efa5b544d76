# SPDX-License-Identifier: Apache-2.0
"""Outer steps compute what a model in float64 computes, with the same bits at all ranks, and lose nothing to codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agspeed.distributed.codecs.codec import Steps
from agspeed.distributed.codecs.int8 import average_as_bytes
from agspeed.distributed.diloco.pieces import Piece, fragments_of
from tests.python.distributed.codecs import numpy_models
from tests.python.distributed.codecs.local_group import LocalGroup, LocalWire, gradients

SEED = 20261129
RATE, MOMENTUM = 0.7, 0.9


def sent(values: list[torch.Tensor], lost: list[torch.Tensor]) -> list[bool]:
    """Averages the values of all ranks in place."""
    results = [False] * len(values)

    def steps(wire: LocalWire) -> Steps:
        results[wire.rank] = yield from average_as_bytes(values[wire.rank], wire, lost[wire.rank])

    errors = LocalGroup(len(values)).run(steps)
    assert errors == [None] * len(values), errors
    return results


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sent_and_lost_values_add_up_to_the_average(size: int) -> None:
    given = gradients(SEED, size, 5000)
    values, lost = [each.clone() for each in given], [torch.empty(5000) for _ in given]
    assert all(sent(values, lost))
    expected = torch.from_numpy(numpy_models.average_int8([each.numpy() for each in given]))
    for found in values:
        assert torch.equal(found, expected), f"seed {SEED}"
    exact = sum(each.double() for each in given) / size
    total = expected.double() + sum(each.double() for each in lost) / size
    assert (expected - exact).abs().max() > 1e-3
    assert (total - exact).abs().max() < 1e-6 * exact.abs().max(), f"seed {SEED}"


def test_values_with_infinity_are_left_alone_at_all_ranks() -> None:
    given = gradients(SEED, 3, 5000)
    given[1][4321] = torch.inf
    values = [each.clone() for each in given]
    assert sent(values, [torch.empty(5000) for _ in given]) == [False] * 3
    assert all(map(torch.equal, values, given))


def pieces(size: int, count: int, dtype: torch.dtype, *, is_coded: bool) -> tuple[list[torch.Tensor], list[Piece]]:
    """Returns the parameters and the pieces of all ranks."""
    start = torch.randn(count, generator=torch.Generator().manual_seed(SEED)).to(dtype)
    parameters = [start.clone() for _ in range(size)]
    halves = [{"first": each[:-100].view(-1, 2), "last": each[-100:]} for each in parameters]
    return parameters, [Piece(each, is_coded=is_coded) for each in halves]


def synchronize(made: list[Piece]) -> None:
    errors = LocalGroup(len(made)).run(lambda wire: made[wire.rank].exchange(wire))
    assert errors == [None] * len(made), errors
    for piece in made:
        assert piece.is_exchanged
        piece.apply(RATE, MOMENTUM)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("is_coded", [False, True], ids=["dense", "int8"])
def test_outer_steps_are_those_of_float64(size: int, is_coded: bool) -> None:
    parameters, made = pieces(size, 5000, torch.float32, is_coded=is_coded)
    outer = parameters[0].double().numpy()
    velocity, owed = np.zeros_like(outer), np.zeros_like(outer)
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(4):
        before = outer.copy()
        for parameter in parameters:
            parameter.add_(0.01 * torch.randn(5000, generator=generator))
        moved = np.mean([made[0].outer.double().numpy() - each.double().numpy() for each in parameters], axis=0)
        synchronize(made)
        residual = made[0].residual
        if residual is not None:
            left = np.mean([each.residual.double().numpy() for each in made if each.residual is not None], axis=0)
            moved, owed = moved + owed - left, left
        velocity = MOMENTUM * velocity + moved
        outer = outer - RATE * (moved + MOMENTUM * velocity)
        assert np.abs(outer - before).max() > 1e-3
        for piece, parameter in zip(made, parameters, strict=True):
            assert np.abs(piece.outer.double().numpy() - outer).max() < 1e-5, f"seed {SEED}"
            assert torch.equal(piece.outer, made[0].outer)
            assert torch.equal(parameter, piece.outer)
    assert (made[0].residual is not None) == is_coded


def test_bfloat16_that_does_not_move_stays() -> None:
    parameters, made = pieces(2, 5000, torch.bfloat16, is_coded=True)
    start = parameters[0].clone()
    for _ in range(2):
        synchronize(made)
    assert made[0].outer.dtype == torch.float32
    assert all(torch.equal(each, start) for each in parameters)


def test_a_piece_continues_from_its_state() -> None:
    parameters, made = pieces(2, 5000, torch.float32, is_coded=True)
    for parameter in parameters:
        parameter.add_(0.01 * torch.randn(5000, generator=torch.Generator().manual_seed(SEED)))
    synchronize(made)
    for has_residuals in (True, False):
        _, [other, _] = pieces(2, 5000, torch.float32, is_coded=True)
        other.load(made[0].state(), has_residuals=has_residuals)
        assert torch.equal(other.outer, made[0].outer)
        assert torch.equal(other.velocity, made[0].velocity)
        assert other.residual is not None
        assert made[0].residual is not None
        assert torch.equal(other.residual, made[0].residual) == has_residuals


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_fragments_have_all_parameters_once_in_order(count: int) -> None:
    sizes = [10, 1, 500, 30, 30, 200, 5, 7, 90]
    parameters = {f"p{at}": torch.zeros(size) for at, size in enumerate(sizes)}
    parameters["half"] = torch.zeros(3, dtype=torch.bfloat16)
    found = fragments_of(parameters, count)
    names = [name for fragment in found for part in fragment for name in part]
    assert names == list(parameters)
    assert 1 <= len(found) <= count
    assert [len(fragment) for fragment in found] == [1] * (len(found) - 1) + [2]
