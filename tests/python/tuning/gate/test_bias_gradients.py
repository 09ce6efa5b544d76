# SPDX-License-Identifier: Apache-2.0
"""Gradients of a convolution's bias are long sums. oneDNN computes them with one accumulator for each channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from agspeed.tuning.gate import check as gate
from agspeed.tuning.gate.noise import Noisy
from tests.python.support.float_sums import EPS, LANES, draw, in_order
from tests.python.support.pairs import first_of

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:TF32 acceleration")]


class Biased(torch.autograd.Function):
    """A convolution whose bias gradient is a function of the rows, with one number per channel in each row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, summed: Any) -> torch.Tensor:
        ctx.summed = summed
        ctx.save_for_backward(x, weight)
        return functional.conv2d(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        arguments = [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
        found = torch.ops.aten.convolution_backward(gradient, x, weight, [len(weight)], *arguments)
        return *found[:2], ctx.summed(gradient.movedim(1, -1).reshape(-1, len(weight))), None


def in_lanes(rows: torch.Tensor) -> torch.Tensor:
    """Sums columns with a vector of accumulators for each."""
    return in_order(in_order(rows.reshape(len(rows) // LANES, -1)).reshape(LANES, -1))


def judge_bias(summed: Callable[[torch.Tensor], torch.Tensor], seed: int) -> gate.Verdict:
    """Judges the bias gradient of a convolution over 65,536 pixels. Torch's own sum is pairwise, so it is very
    exact."""
    x = draw(4, 2, 128, 128, seed=seed) - 0.5
    weight, bias = (torch.nn.Parameter(draw(*shape, seed=seed)) for shape in ((16, 2, 1, 1), (16,)))
    with torch.backends.mkldnn.flags(enabled=False):
        return gate.check(
            lambda *args: (Biased.apply(*args, summed),),
            lambda *args: (functional.conv2d(*args),),
            [x, weight, bias],
            gate.Policy(seed=seed),
        )


@pytest.mark.parametrize("seed", first_of(range(8), 3))
@pytest.mark.parametrize("method", [in_order, in_lanes])
def test_a_bias_gradient_by_one_accumulator_a_channel_or_lane_is_accepted(
    method: Callable[[torch.Tensor], torch.Tensor], seed: int
) -> None:
    """oneDNN and vector loops compute a convolution's bias gradient in this way."""
    verdict = judge_bias(method, seed)
    assert verdict.accepted, verdict.reason


MISTAKES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "no last block": lambda rows: in_order(rows[:-LANES]),
    "one wrong row": lambda rows: in_order(torch.cat([rows[1:2], rows[1:]])),
    "scale off by 1e-3": lambda rows: in_order(rows) * 1.001,
    "scale off by 1e-4": lambda rows: in_order(rows) * 1.0001,
}


@pytest.mark.parametrize("seed", first_of(range(4), 2))
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_bias_gradient_is_rejected(mistake: str, seed: int) -> None:
    verdict = judge_bias(MISTAKES[mistake], seed)
    assert verdict.outcome == "rejected", verdict.reason


@pytest.mark.parametrize("runs", [3, 131])
def test_noise_is_no_less_than_what_one_accumulator_errs(runs: int) -> None:
    gradient = draw(runs, 16, seed=2).repeat_interleave(1000, 0)
    gradient = gradient.t().reshape(1, 16, -1, 1).double()
    x, weight = torch.ones(1, 1, *gradient.shape[2:]).double(), torch.ones(16, 1, 1, 1).double()
    arguments = [16], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, False, True]
    exact = torch.ops.aten.convolution_backward(gradient, x, weight, *arguments)[2]
    with Noisy(EPS, seed=1):
        noisy = torch.ops.aten.convolution_backward(gradient, x, weight, *arguments)[2]
    chained = in_order(gradient[0, :, :, 0].t().float()).double()
    assert ((noisy - exact).abs() >= (chained - exact).abs()).all()
    assert (noisy - exact).norm() < 1.1 * (chained - exact).norm()
