# SPDX-License-Identifier: Apache-2.0
"""Allowed effects of the order of summation: long sums, sums in normalisations, gradients that cancel or jump."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from agspeed.tuning.gate import check as gate
from agspeed.tuning.gate.compare import FACTOR_BELOW_NOISE, compare, deviation
from agspeed.tuning.gate.noise import Noisy
from tests.python.support.float_sums import EPS, LANES, draw, in_order

SIZE = 256


def judged(factor: float, *, level: float) -> bool:
    """True if the gate accepts a tensor whose error is `factor` times eager's, for a reference of size `level`."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(SIZE, generator=generator, dtype=torch.float64) * 1e-8
    reference = torch.randn(SIZE, generator=generator, dtype=torch.float64) * level
    return compare("t", (reference + factor * noise).float(), (reference + noise).float(), reference).ok


def test_noise_around_zero_depends_on_the_order_of_summation_only() -> None:
    assert judged(0.5 * FACTOR_BELOW_NOISE, level=1e-17)


def test_more_than_noise_around_zero_is_rejected() -> None:
    assert not judged(2 * FACTOR_BELOW_NOISE, level=1e-17)


def test_a_tensor_above_the_noise_keeps_the_strict_rule() -> None:
    assert not judged(0.5 * FACTOR_BELOW_NOISE, level=1e-7)


@pytest.mark.parametrize(
    ("runs", "accepted"), [((2.4e-6,), False), ((2.4e-6, 2.3e-6, 6.3e-6), True), ((2.4e-6, 2.3e-6), False)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_largest_of_several_noisy_runs_is_the_yardstick(
    runs: tuple[float, ...], accepted: bool, dtype: torch.dtype
) -> None:
    """Seen in an EfficientNet: all errors of a run are multiples of one number."""
    unit = 1.0 if dtype is torch.float32 else torch.finfo(dtype).eps / EPS
    generator = torch.Generator().manual_seed(3)
    reference = torch.randn(SIZE, generator=generator, dtype=torch.float64) + 4
    direction = torch.randn(SIZE, generator=generator, dtype=torch.float64).sign()

    def off(amount: float) -> torch.Tensor:
        return reference * (1 + direction * amount * unit)

    eager, candidate = off(1.2e-6).to(dtype), off(7e-6).to(dtype)
    noise = [deviation(off(amount), eager, reference) for amount in runs]
    assert compare("t", candidate, eager, reference, noise).ok == accepted


def test_a_refusal_says_the_error_eagers_and_the_bound() -> None:
    reference = torch.ones(SIZE, dtype=torch.float64)
    eager, candidate = (reference * 1.000001).float(), (reference * 1.001).float()
    noise = [deviation(reference * 1.00002, eager, reference)] * 2
    problem = compare("t", candidate, eager, reference, noise).problem
    assert problem is not None
    for part in ("off by up to 1.0e-03", "eager by 9.5e-07", "allowed is 8.2e-05", "4 times", "2 runs"):
        assert part in problem, f"{part} is not in: {problem}"


LONG = 1 << 20


def one_accumulator_per_lane(x: torch.Tensor) -> torch.Tensor:
    """Returns a sum as a simple vector loop computes it."""
    return in_order(in_order(x.reshape(-1, LANES)).reshape(LANES, 1)).reshape(())


def one_accumulator_per_block(x: torch.Tensor) -> torch.Tensor:
    return in_order(in_order(x.reshape(1 << 10, -1)).reshape(-1, 1)).reshape(())


def long_sum(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(), x.sigmoid()


@pytest.mark.parametrize(
    ("method", "mean"),
    [(one_accumulator_per_lane, 0.5), (one_accumulator_per_block, 0.5), (one_accumulator_per_block, 0.0)],
    ids=["vector loop", "blocks", "blocks, terms that cancel"],
)
def test_a_long_float32_sum_in_another_order_is_accepted(
    method: Callable[[torch.Tensor], torch.Tensor], mean: float
) -> None:
    x = draw(LONG) - 0.5 + mean
    verdict = gate.check(lambda x: (method(x), x.sigmoid()), long_sum, [x])
    assert verdict.accepted, verdict.reason


@pytest.mark.parametrize("rows", [300, 2304, 8192])
@pytest.mark.parametrize("is_broadcast", [False, True], ids=["", "runs of equal terms"])
def test_sums_of_columns_by_one_accumulator_each_are_accepted(rows: int, is_broadcast: bool) -> None:
    """Compiled loops sum a bias gradient over the rows of a batch in this way. Pooling gives its rows equal
    gradients."""
    x = draw(rows // 50 + 1, 64).repeat_interleave(50, 0)[:rows].contiguous() if is_broadcast else draw(rows, 64)
    verdict = gate.check(lambda x: (in_order(x), in_order(x) / rows), lambda x: (x.sum(0), x.mean(0)), [x])
    assert verdict.accepted, verdict.reason


def in_chunks(x: torch.Tensor) -> torch.Tensor:
    """Returns sums of columns like Inductor's loops: one accumulator for 4096 terms, and another for the partial
    sums."""
    return in_order(torch.stack([in_order(chunk) for chunk in x.split(4096)]))


@pytest.mark.parametrize("seed", range(6))
def test_long_sums_of_equal_terms_by_chunks_are_accepted(seed: int) -> None:
    """Happens for gradients of pooled feature maps: all roundings of a chunk go in the same direction."""
    x = draw(8, 64, seed=seed).repeat_interleave(4096, 0)
    verdict = gate.check(lambda x: (in_chunks(x), in_chunks(x) / len(x)), lambda x: (x.sum(0), x.mean(0)), [x])
    assert verdict.accepted, verdict.reason


def test_a_long_sum_that_is_off_by_more_is_rejected() -> None:
    verdict = gate.check(lambda x: (x.sum() * (1 + 1e-5), x.sigmoid()), long_sum, [draw(LONG)])
    assert verdict.outcome == "rejected", verdict.reason


def test_a_long_sum_beside_it_does_not_excuse_another_result() -> None:
    def wrong(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return one_accumulator_per_lane(x), (x.sigmoid().double() * (1 + 8 * EPS)).float()

    verdict = gate.check(wrong, long_sum, [draw(LONG)])
    assert verdict.outcome == "rejected", verdict.reason


def test_a_float64_sum_in_float32_is_rejected() -> None:
    x = draw(1000, 64).double()
    verdict = gate.check(lambda x: (x.float().sum(0).double(),), lambda x: (x.sum(0),), [x])
    assert verdict.outcome == "rejected", verdict.reason


class Residual(torch.autograd.Function):
    """Computes x + x u v. In both directions, the last product is accumulated onto the tensor that is added."""

    wrong = 1.0
    """The factor of the product; a value other than 1 is a mistake."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        hidden = x @ u
        ctx.save_for_backward(x, hidden, u, v)
        return torch.addmm(x, hidden, v, alpha=Residual.wrong)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, hidden, u, v = ctx.saved_tensors
        inner = gradient @ v.t()
        return torch.addmm(gradient, inner, u.t(), alpha=Residual.wrong), x.t() @ inner, hidden.t() @ gradient


def residual(x: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x + x @ u @ v,)


@pytest.fixture
def one_row() -> list[torch.Tensor]:
    """Inputs of `residual`: sums of 16,384 small terms beside a large tensor."""
    generator = torch.Generator().manual_seed(7)
    shapes = {(1, 64): 1.0, (64, 1 << 14): 0.005, (1 << 14, 64): 0.005}
    return [(torch.randn(s, generator=generator) * scale).requires_grad_() for s, scale in shapes.items()]


def accumulating(x: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (Residual.apply(x, u, v),)


@pytest.mark.usefixtures("one_thread")
def test_a_product_may_be_accumulated_onto_what_it_is_added_to(one_row: list[torch.Tensor]) -> None:
    """Compilers turn a product and a sum into addmm, which does this."""
    verdict = gate.check(accumulating, residual, one_row)
    assert verdict.accepted, verdict.reason


@pytest.mark.usefixtures("one_thread")
def test_a_product_accumulated_wrongly_is_rejected(
    one_row: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Residual, "wrong", 1.01)
    verdict = gate.check(accumulating, residual, one_row)
    assert verdict.outcome == "rejected", verdict.reason


def test_a_short_sum_keeps_the_strict_rule() -> None:
    x = draw(256, 64)
    verdict = gate.check(lambda x: ((x.double().sum(1) * (1 + 8 * EPS)).float(),), lambda x: (x.sum(1),), [x])
    assert verdict.outcome == "rejected", verdict.reason


def _batch_norm(x: torch.Tensor) -> torch.Tensor:
    mean, variance = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
    functional.batch_norm(x.t(), mean, variance, training=True)
    return mean


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "var": lambda x: x.var(1),
    "mean beside a deviation": lambda x: torch.std_mean(x, 1)[1],
    "softmax": lambda x: x.softmax(1),
    "matrix product": lambda x: x @ x.t(),
    "mean square loss": lambda x: functional.mse_loss(x, x.flip(0)).reshape(1),
    "batch norm's running mean": _batch_norm,
    "group norm's mean": lambda x: torch.native_group_norm(x[:, None], None, None, 4, 1, 1 << 14, 1, 1e-5)[1],
    "layer norm's mean": lambda x: torch.native_layer_norm(x, [1 << 14], None, None, 1e-5)[1],
    "weight gradient of a convolution": lambda x: torch.ops.aten.convolution_backward(
        x[:, None], x[:, None], x.new_ones(1, 1, 1), [1], [1], [0], [1], False, [0], 1, [False, True, False]
    )[1],
}


@pytest.mark.parametrize("is_inference", [False, True], ids=["", "inference mode"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_noise_enters_where_sums_are(name: str, is_inference: bool) -> None:
    """Sums of 16,384 terms move by about 5 eps, and results that need several of them move by more."""
    x = draw(4, 1 << 14).double()
    with torch.inference_mode(is_inference):
        plain = REDUCTIONS[name](x)
        with Noisy(EPS, seed=1):
            moved = REDUCTIONS[name](x)
    steps = float((moved - plain).norm() / plain.norm()) / EPS
    assert 3 < steps < 20, f"{name} moved by {steps:.1f} eps"


def test_noise_leaves_infinities_alone() -> None:
    """Attention masks contain infinities."""
    mask = torch.zeros(8, 100, dtype=torch.double).masked_fill(draw(8, 100) < 0.5, -torch.inf)
    with Noisy(EPS, seed=1):
        scores = mask * 2
        total = scores.sum(1)
        weights = (scores + 1).softmax(1)
    assert torch.equal(scores, mask)
    assert torch.equal(total, mask.sum(1))
    assert weights.isfinite().all()


def test_noise_leaves_elementwise_operators_at_one_step() -> None:
    x = draw(64, 64).double()
    with Noisy(EPS, seed=1):
        moved = x * 3
    assert torch.allclose((moved / (x * 3) - 1).abs(), torch.full_like(x, EPS), rtol=1e-6)


@pytest.mark.parametrize("is_inference", [False, True], ids=["", "inference mode"])
@pytest.mark.parametrize(
    "resample",
    [
        lambda x: functional.interpolate(x, scale_factor=2.0),
        lambda x: functional.interpolate(x, size=(13, 7)),
        lambda x: functional.interpolate(x, scale_factor=0.5, mode="bilinear"),
        lambda x: functional.max_pool2d(x, 2),
        lambda x: functional.adaptive_avg_pool2d(x, 3),
    ],
    ids=["nearest", "nearest to a size", "bilinear", "max pool", "adaptive pool"],
)
def test_noise_takes_pixels_from_where_they_are(
    resample: Callable[[torch.Tensor], torch.Tensor], is_inference: bool
) -> None:
    x = draw(2, 3, 12, 12).double() + 0.5
    with torch.inference_mode(is_inference):
        plain = resample(x)
        with Noisy(EPS, seed=1):
            moved = resample(x)
    assert torch.allclose(moved, plain, rtol=4 * EPS, atol=0.0)


@pytest.mark.parametrize("shape", [(7, 11), (300, 1001)], ids=["few", "many"])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["rows", "columns"])
def test_every_element_moves_by_a_step_up_or_down(shape: tuple[int, int], is_transposed: bool) -> None:
    x = draw(*shape).double() + 1
    x = x.t() if is_transposed else x
    before = x.clone()
    with Noisy(EPS, seed=1) as noise:
        moved, shaken = x * 1.0, noise.shaken(x)
    assert torch.equal(x, before)
    for result in (moved, shaken):
        steps = (result / before - 1) / EPS
        assert result.stride() == x.stride()
        assert torch.allclose(steps.abs(), torch.ones_like(steps), rtol=1e-6)
        assert steps.mean().abs() < 4 / steps.numel() ** 0.5, "ups and downs are equally likely"
    assert not torch.equal(moved, shaken)


class ReluOf(torch.autograd.Function):
    """relu(x), with the given mask in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.saved_tensors[0], None


@pytest.mark.parametrize(("reach", "accepted"), [(2e-6, True), (1e-2, False)])
def test_gradients_may_take_either_side_of_a_jump_but_only_next_to_it(reach: float, accepted: bool) -> None:
    def wrong_side(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shifted = x + bias
        return (ReluOf.apply(shifted, shifted > reach),)

    x, bias = draw(LONG // 8, 8) - 0.5, torch.zeros(8, requires_grad=True)
    changed = int(((x > 0) & (x <= reach)).sum())
    verdict = gate.check(wrong_side, lambda x, bias: ((x + bias).relu(),), [x, bias])
    assert changed > 0
    assert verdict.accepted == accepted, f"{changed} elements changed sides: {verdict.reason}"


@pytest.mark.parametrize(
    ("function", "jump"),
    [
        (functional.hardswish, 3.0),
        (functional.hardsigmoid, -3.0),
        (functional.relu6, 6.0),
        (functional.leaky_relu, 0.0),
    ],
)
def test_noise_crosses_the_jumps_of_derivatives_next_to_them_only(
    function: Callable[[torch.Tensor], torch.Tensor], jump: float
) -> None:
    steps = draw(200).double() * 1e-6
    x = torch.cat([jump - steps, jump - 0.01 - steps, jump + 0.01 + steps]).requires_grad_()

    def derivative() -> torch.Tensor:
        return torch.autograd.grad(function(x).sum(), x)[0]

    with Noisy(EPS, seed=1):
        noisy = derivative()
    crossed = (noisy - derivative()).abs() > 0.1
    assert crossed[:200].any()
    assert not crossed[200:].any()


def test_noise_crosses_the_jump_of_relu_from_both_sides() -> None:
    steps = draw(200).double() * 1e-6
    x = torch.cat([-steps, steps, 0.01 + steps, -0.01 - steps]).requires_grad_()
    with Noisy(EPS, seed=1):
        (noisy,) = torch.autograd.grad(torch.relu(x).sum(), x)
    below, above, open_, closed = (noisy > 0.5).split(200)
    assert below.any()
    assert above.any() and not above.all()
    assert open_.all() and not closed.any()
