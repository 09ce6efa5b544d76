# SPDX-License-Identifier: Apache-2.0
"""A model that never trains gets one sentence after twenty calls. A model that trains in any way gets none."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from tests.python.support.small_models import FAST, mlp

_SENTENCE = "20 calls and no training step"
_FOREIGN = "holds no parameter of this Sequential: it trains another model; make it from model.parameters()"


def call(model: Callable[..., Any], count: int) -> None:
    for _ in range(count):
        model(torch.ones(4, 8))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns agspeed's warnings."""
    return [r.getMessage() for r in caplog.records if r.name == "agspeed" and r.levelno >= logging.WARNING]


def sentence_after_20(model: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> str:
    """Makes 100 calls and returns the one sentence that they cause, which must not come before the twentieth."""
    call(model, 19)
    assert not warnings(caplog)
    call(model, 81)
    (said,) = warnings(caplog)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("mode", ["auto", "max", "deterministic"])
def test_a_model_in_eval_mode(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    model = agspeed.optimize(mlp().eval(), mode=mode, backends=["aot"])
    said = sentence_after_20(model, caplog)
    assert f"Sequential: {_SENTENCE} (it is in eval mode), and" in said
    assert 'call model.train(), or take agspeed off with mode="off" or agspeed.restore' in said


def test_a_model_in_eval_mode_without_gradients(caplog: pytest.LogCaptureFixture) -> None:
    model = agspeed.optimize(mlp().eval(), mode="auto")
    with torch.no_grad():
        said = sentence_after_20(model, caplog)
    assert "(it is in eval mode and gradients are off)" in said
    assert "call model.train() and call it outside torch.no_grad(), or" in said


def test_a_frozen_model(caplog: pytest.LogCaptureFixture) -> None:
    said = sentence_after_20(agspeed.optimize(mlp().requires_grad_(False), mode="auto"), caplog)
    assert "(no parameter requires a gradient)" in said and "set requires_grad of the parameters that train" in said


def test_a_model_whose_loss_is_never_differentiated(caplog: pytest.LogCaptureFixture) -> None:
    said = sentence_after_20(agspeed.optimize(mlp(), mode="auto"), caplog)
    assert "(no backward() has reached its parameters)" in said and "call backward() on a loss of its output" in said


@pytest.mark.parametrize("mode", ["auto", "deterministic"])
def test_a_function_that_never_trains(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()

    @agspeed.optimize(mode=mode, backends=["aot"])
    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    said = sentence_after_20(forward, caplog)
    assert f"forward: {_SENTENCE} (no optimizer has stepped and no parameter has changed)" in said
    assert "pass the function that computes the loss, calls backward() and steps the optimizer" in said


def test_a_builtin_function_that_never_trains(caplog: pytest.LogCaptureFixture) -> None:
    assert f"relu: {_SENTENCE}" in sentence_after_20(agspeed.optimize(torch.relu, **FAST), caplog)


@pytest.mark.filterwarnings("error")
def test_what_a_function_refers_to_is_looked_at_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.ones(8, requires_grad=True)
    derived, counted = weight * 2, [torch.zeros(1), torch.ones(1)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * derived + counted[0] + (later if x.numel() == 0 else 0)

    function = agspeed.optimize(function, mode="auto")
    sentence_after_20(function, caplog)
    later = 3  # bound after the watch has read the closure


@pytest.mark.parametrize("zeroed", ["model", "optimizer"])
def test_a_loop_with_an_optimizer_of_another_model(zeroed: str, caplog: pytest.LogCaptureFixture) -> None:
    model = agspeed.optimize(mlp(), mode="auto")
    optimizer = torch.optim.Adam(mlp().parameters())
    for _ in range(25):
        (model if zeroed == "model" else optimizer).zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    (said,) = warnings(caplog)
    assert said.endswith(f"the Adam that steps {_FOREIGN}")


def test_a_model_on_meta_is_named_when_it_is_handed_over(caplog: pytest.LogCaptureFixture) -> None:
    with torch.device("meta"):
        model = agspeed.optimize(nn.Linear(8, 4), mode="auto")
    for _ in range(30):
        model(torch.ones(4, 8, device="meta"))
    (said,) = warnings(caplog)
    assert "the device meta" in said and "model.to_empty" in said


def test_a_function_on_meta_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = mlp().to("meta")
    step = agspeed.optimize(lambda x: model(x).sum().backward(), mode="auto")
    for _ in range(30):
        step(torch.ones(4, 8, device="meta"))
    (said,) = warnings(caplog)
    assert "the device meta" in said


# --- models that train ------------------------------------------------------------------------------------------------


class OwnOptimizer:
    """An optimizer outside torch.optim. It writes to weights without a change of their version counters."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def zero_grad(self) -> None:
        """Keeps gradients, as optimizers do that zero them within the step."""

    def step(self) -> None:
        for parameter in self._model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)


@pytest.mark.parametrize("mode", ["auto", "deterministic"])
@pytest.mark.parametrize("accumulate", [1, 30])
@pytest.mark.parametrize("make", [lambda model: torch.optim.SGD(model.parameters(), 0.1), OwnOptimizer])
def test_training_in_eval_mode_is_left_in_peace(
    make: Callable[[nn.Module], Any], accumulate: int, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = agspeed.optimize(mlp().eval(), mode=mode, backends=["aot"])  # as in fine-tuning with frozen statistics
    optimizer = make(model)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(accumulate):
            model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    call(model, 30)
    assert not warnings(caplog)


@pytest.mark.parametrize("by", ["optimizer", "hand"])
@pytest.mark.parametrize("mode", ["auto", "deterministic"])
def test_a_step_function_that_trains_is_left_in_peace(mode: str, by: str, caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        if by == "optimizer":
            optimizer.step()
            return
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad

    call(agspeed.optimize(step, mode=mode, backends=["aot"]), 30)
    assert not warnings(caplog)


def test_two_models_in_turns_are_left_in_peace(caplog: pytest.LogCaptureFixture) -> None:
    models = [agspeed.optimize(mlp(), mode="auto") for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(30):
        for optimizer in optimizers:
            optimizer.zero_grad()
            sum(model(torch.ones(4, 8)).sum() for model in models).backward()
            optimizer.step()
    assert not warnings(caplog)


@pytest.mark.parametrize("grad", [contextlib.nullcontext, torch.no_grad], ids=["grad", "no_grad"])
def test_the_watch_ends_with_the_sentence(grad: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = agspeed.optimize(mlp().eval(), **FAST)
    with grad():
        call(model, 20)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    for _ in range(6):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    assert agspeed.status(model) == "tuned" and len(warnings(caplog)) == 1
