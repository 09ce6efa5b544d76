# SPDX-License-Identifier: Apache-2.0
"""A function of torch that warns about its inputs does so in compiled code, as often as in eager."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import agspeed
from agspeed import native

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_STEPS = 10
_WARNING = {
    "sizes that differ": lambda output: F.mse_loss(output, torch.ones(1, 4)),
    "a loss module": lambda output: nn.L1Loss()(output, torch.ones(1, 4)),
    "no dimension": lambda output: F.softmax(output).square().sum(),
    "a reduction": lambda output: F.kl_div(F.log_softmax(output, 1), torch.full((3, 4), 0.25)),
}


class Net(nn.Module):
    def __init__(self, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self._loss = nn.Linear(4, 4), loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._loss(torch.tanh(self.layer(x)))


def _num_given(model: nn.Module, action: str) -> list[int]:
    """Trains. Returns: how many warnings each step gave; -1 where one was raised."""
    numbers = []
    for _ in range(_STEPS):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("ignore" if action == "error" and len(numbers) < _STEPS - 3 else action)
            try:
                model(torch.ones(3, 4)).backward()
            except UserWarning:
                numbers.append(-1)
                continue
        numbers.append(sum(each.category is UserWarning for each in given))
    return numbers


@pytest.mark.parametrize("backend", ["aot", "native"])
@pytest.mark.parametrize("loss", _WARNING.values(), ids=_WARNING)
def test_the_last_steps_raise_where_warnings_are_errors(loss: Callable[..., torch.Tensor], backend: str) -> None:
    plain = Net(loss)
    model = agspeed.optimize(copy.deepcopy(plain), mode="deterministic", backends=[backend])
    expected = _num_given(plain, "error")
    assert expected == [0] * (_STEPS - 3) + [-1] * 3
    assert _num_given(model, "error") == expected
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason


@pytest.mark.parametrize("loss", _WARNING.values(), ids=_WARNING)
def test_each_step_warns_where_the_user_wants_all(loss: Callable[..., torch.Tensor]) -> None:
    plain = Net(loss)
    model = agspeed.optimize(copy.deepcopy(plain), mode="deterministic", backends=["aot"])
    expected = _num_given(plain, "always")
    assert expected[-1] > 0
    assert _num_given(model, "always")[-3:] == expected[-3:]
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason
