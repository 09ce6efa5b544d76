# SPDX-License-Identifier: Apache-2.0
"""A runner that raises half-way: the step is repeated as eager would have run it, or refused, but never run twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.frontend.session import session_of
from tests.python.frontend.differential import state
from tests.python.support.small_models import FAST, steps, tuned

Runner = Callable[..., Any]


def _model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))


def _break(model: nn.Module, make: Callable[[Runner], Runner]) -> Any:
    """Replaces the chosen runner of the model's only region."""
    (region,) = session_of(model).regions
    region.outcomes["aot"].runner = make(region.outcomes["aot"].runner)
    region.select("aot")
    return region


def _raises_after_drawing(runner: Runner) -> Runner:
    def run(*args: Any) -> Any:
        torch.rand(1000)
        raise RuntimeError("the kernel is gone")

    return run


def _raises_after_everything(runner: Runner) -> Runner:
    def run(*args: Any) -> Any:
        runner(*args)
        raise RuntimeError("the kernel is gone")

    return run


def test_failed_run_draws_no_random_numbers() -> None:
    model, expected = _model(), _model()
    torch.manual_seed(11)
    steps(expected)
    steps(expected)
    numbers = torch.rand(5)
    torch.manual_seed(11)
    model = tuned(model)
    region = _break(model, _raises_after_drawing)
    steps(model)
    assert region.selected == "graph-eager"
    assert torch.equal(torch.rand(5), numbers), "the random stream is not where eager leaves it"
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))


def test_run_that_failed_after_changing_inputs_is_not_repeated() -> None:
    model = tuned(_model())
    region = _break(model, _raises_after_everything)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(agspeed.AgspeedError, match=r"changed input \d+ of the region in place") as caught:
        steps(model, 1)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    steps(model, 1)
    assert region.selected == "graph-eager"


def test_effects_are_those_of_the_graph() -> None:
    for layers, draws, num_mutated in [
        ([nn.Linear(8, 4)], False, 0),
        ([nn.Linear(8, 4), nn.Dropout(0.5)], True, 0),
        ([nn.BatchNorm1d(8), nn.Linear(8, 4)], False, 3),
    ]:
        model = agspeed.optimize(nn.Sequential(*layers), **FAST)
        steps(model, 3)
        (region,) = session_of(model).regions
        effects = region._effects
        assert (effects.draws_random_numbers, len(effects.mutated_inputs)) == (draws, num_mutated), layers
