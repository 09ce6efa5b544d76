# SPDX-License-Identifier: Apache-2.0
"""GroupNorm computes mean and variance of thousands of numbers, and compilers compute both in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional

from agspeed.tuning.gate import check as gate
from tests.python.support.float_sums import draw

pytestmark = pytest.mark.usefixtures("one_thread")

IMAGES, CHANNELS, SIZE, STEP = 4, 8, 64, 1e-5
Statistics = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Computes mean and variance of each row. A row holds some channels, and a channel holds pixels."""


class Normalised(torch.autograd.Function):
    """A GroupNorm with the given statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, statistics: Any
    ) -> Any:
        mean, variance = statistics(x.detach().reshape(IMAGES * groups, CHANNELS // groups, -1))
        mean, rstd = mean.reshape(IMAGES, groups), (variance + STEP).rsqrt().reshape(IMAGES, groups)
        ctx.save_for_backward(x, mean, rstd, weight)
        ctx.groups = groups
        scale = rstd.repeat_interleave(CHANNELS // groups, 1) * weight
        shift = bias - mean.repeat_interleave(CHANNELS // groups, 1) * scale
        return x * scale[..., None, None] + shift[..., None, None]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        sizes = IMAGES, CHANNELS, SIZE * SIZE, ctx.groups
        found = torch.ops.aten.native_group_norm_backward(
            gradient.contiguous(), *ctx.saved_tensors, *sizes, [True, True, True]
        )
        return *found, None, None


def in_one_pass(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Uses Welford's recurrence for each channel, and Chan's formula to combine the channels of a group.

    Inductor's loops over images in channels-last format do the same; the lanes of a vector hold channels
    (`welford_combine` in torch's cpp_prefix.h).
    """
    terms = rows.permute(2, 0, 1).numpy()
    means, squares = numpy.zeros((2, *terms.shape[1:]), numpy.float32)
    for count, term in enumerate(terms, start=1):
        off = term - means
        means = means + off * numpy.float32(1 / count)
        squares = squares + off * (term - means)
    mean, square = means[:, 0], squares[:, 0]
    for lane in range(1, terms.shape[2]):
        off, share = means[:, lane] - mean, numpy.float32(1 / (lane + 1))
        mean = mean + off * share
        square = square + squares[:, lane] + off * off * (share * numpy.float32(lane * len(terms)))
    return torch.from_numpy(mean), torch.from_numpy(square / numpy.float32(rows[0].numel()))


def judged(statistics: Statistics, groups: int, seed: int) -> gate.Verdict:
    """Judges images whose channels have means far above their spread."""
    x = draw(IMAGES, CHANNELS, SIZE, SIZE, seed=seed) + 1
    weight, bias = (torch.nn.Parameter(draw(CHANNELS, seed=seed + i) + 0.5) for i in (1, 2))
    return gate.check(
        lambda *args: (Normalised.apply(*args, groups, statistics),),
        lambda x, weight, bias: (functional.group_norm(x, groups, weight, bias, STEP),),
        [x.requires_grad_(), weight, bias],
        gate.Policy(seed=seed),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("groups", [CHANNELS, CHANNELS // 4], ids=["a channel a group", "four channels a group"])
def test_statistics_in_one_pass_are_accepted(groups: int, seed: int) -> None:
    verdict = judged(in_one_pass, groups, seed)
    assert verdict.accepted, f"seed {seed}: {verdict.reason}"


def _changed(change: Callable[[torch.Tensor], torch.Tensor], factor: float = 1.0) -> Statistics:
    """Returns statistics in float64 of changed pixels, with the variance multiplied by a factor."""

    def statistics(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        variance, mean = torch.var_mean(change(rows.double()).flatten(1), 1, correction=0)
        return mean.float(), (variance * factor).float()

    return statistics


MISTAKES: dict[str, Statistics] = {
    "no last pixels": _changed(lambda rows: rows[..., :-8]),
    "one wrong pixel": _changed(lambda rows: torch.cat([rows[..., 1:2], rows[..., 1:]], 2)),
    "variance off by 1e-4": _changed(lambda rows: rows, 1.0001),
    "one too few in the divisor": _changed(lambda rows: rows, SIZE * SIZE / (SIZE * SIZE - 1)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_statistics_are_rejected(mistake: str, seed: int) -> None:
    verdict = judged(MISTAKES[mistake], CHANNELS, seed)
    assert verdict.outcome == "rejected", f"seed {seed}: {verdict.reason}"


def test_exact_statistics_are_accepted() -> None:
    """So the mistakes cause the rejections above."""
    verdict = judged(_changed(lambda rows: rows), CHANNELS, 0)
    assert verdict.accepted, verdict.reason
