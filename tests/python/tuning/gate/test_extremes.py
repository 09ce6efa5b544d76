# SPDX-License-Identifier: Apache-2.0
"""The gate refuses code whose NaN, infinities and overflow appear at other places than eager's, and no other code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

import agspeed
from agspeed import native
from agspeed.frontend.session import session_of
from agspeed.tuning.gate.check import Policy, Verdict, check

pytestmark = pytest.mark.usefixtures("one_thread")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Form = Callable[..., torch.Tensor]


class _OwnBackward(torch.autograd.Function):
    """Hardswish with a backward that loses a NaN of x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return functional.hardswish(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        inner = torch.where(x < 3, gradient * (x / 3 + 0.5), gradient)
        return torch.where(x <= -3, torch.zeros_like(gradient), inner)


def _compare_to_clamp(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 6, 6.0, torch.where(x > 0, x, 0.0)).to(x.dtype)


WRONG: dict[str, tuple[Form, Form]] = {
    "a backward that loses NaN": (functional.hardswish, _OwnBackward.apply),  # type: ignore[dict-item]
    "comparisons in the place of clamp": (functional.relu6, _compare_to_clamp),
    "a mask that is multiplied": (torch.relu, lambda x: x * (x > 0)),
    "exp that is clamped": (torch.exp, lambda x: torch.exp(x.clamp(max=80.0 if x.dtype != torch.float16 else 11.0))),
}


def _verdict(reference: Form, candidate: Form, inputs: Sequence[torch.Tensor]) -> Verdict:
    return check(lambda *args: (candidate(*args),), lambda *args: (reference(*args),), inputs, Policy())


def _inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(32, 24, generator=torch.Generator().manual_seed(3)).to(dtype).requires_grad_()]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", WRONG)
def test_code_that_loses_what_eager_shows_is_refused(name: str, dtype: torch.dtype) -> None:
    verdict = _verdict(*WRONG[name], _inputs(dtype))
    assert not verdict.accepted and "among its inputs" in verdict.reason, verdict.reason


def test_a_chain_that_overflows_in_float16_must_overflow() -> None:
    def wider(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 4 / 4).half()

    verdict = _verdict(lambda x: x * 4 / 4, wider, _inputs(torch.float16))
    assert not verdict.accepted and "large numbers" in verdict.reason, verdict.reason


def test_a_target_that_is_nan_is_planted() -> None:
    def finite_gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.smooth_l1_loss(x, y.nan_to_num() + (y - y).detach())

    x, y = _inputs(torch.float32)[0], torch.zeros(32, 24)
    assert not _verdict(functional.smooth_l1_loss, finite_gradient, [x, y]).accepted


SAME: dict[str, tuple[Form, Form]] = {
    "products": (lambda x: x @ x.t() @ x, lambda x: x.flip(1) @ x.flip(1).t() @ x),
    "sums": (lambda x: x * x.sum(0), lambda x: x * x.flip(0).sum(0)),
    "means": (lambda x: x - x.mean(1, True), lambda x: x - x.flip(1).mean(1, True)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SAME)
def test_another_order_of_summation_is_accepted(name: str, dtype: torch.dtype) -> None:
    verdict = _verdict(*SAME[name], _inputs(dtype))
    assert verdict.accepted, verdict.reason


def test_values_that_eager_itself_refuses_are_left_out() -> None:
    p = torch.rand(16, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    target = torch.ones(16, 8)
    verdict = _verdict(functional.binary_cross_entropy, functional.binary_cross_entropy, [p, target])
    assert verdict.accepted, verdict.reason


def _scalar_gelu(x: torch.Tensor) -> torch.Tensor:
    """Gives infinity for infinity, while eager's vector code gives NaN."""
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def test_nan_in_the_place_of_an_infinity_is_accepted() -> None:
    verdict = _verdict(functional.gelu, _scalar_gelu, _inputs(torch.float32))
    assert verdict.accepted, verdict.reason


class EachFunction(torch.nn.Module):
    """Functions with a layer before each. If a function loses a NaN, it shows in the gradient of that layer."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(16, 16) for name in names})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for name, layer in self.layers.items():
            y, function = layer(x), getattr(functional, name)
            total = total + (function(y, torch.ones_like(y)) if name.endswith("loss") else function(y)).sum()
        return total


@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
@pytest.mark.parametrize("backend", ["native", "inductor"])
def test_backends_keep_the_nan_of_common_functions(backend: str) -> None:
    model = EachFunction(["elu", "selu", "celu", "gelu", "hardswish", "relu6", "silu", "smooth_l1_loss"])
    agspeed.optimize(model, mode="deterministic", backends=[backend])
    for _ in range(6):
        model(torch.randn(16, 16)).backward()
    session = session_of(model)
    assert session is not None and [region.selected for region in session.regions] == [backend], agspeed.report(model)
