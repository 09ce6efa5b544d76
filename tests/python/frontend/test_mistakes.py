# SPDX-License-Identifier: Apache-2.0
"""Mistakes of users: each gives one sentence that says what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import agspeed
from agspeed.errors import UserError, UserTypeError
from agspeed.frontend.session import session_of
from tests.python.support.small_models import mlp


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (None, r"got NoneType None: did a builder forget to return it\?"),
        (DataLoader([1, 2]), "got DataLoader.*: pass the model; the loop and its data stay as they are"),
        (
            torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1),
            r"got SGD: an optimizer comes second, model, optimizer = agspeed.optimize\(model, optimizer\)",
        ),
        ([mlp(), mlp()], "got list: call optimize once for each model"),
        (nn.Linear, "got the class Linear: pass an instance"),
    ],
    ids=["none", "loader", "optimizer", "list", "class"],
)
def test_something_else_than_a_model(wrong: Any, sentence: str) -> None:
    with pytest.raises(UserTypeError, match=sentence):
        agspeed.optimize(wrong)
    with pytest.raises(UserTypeError, match=sentence):
        agspeed.optimize(mode="off")(wrong)


@pytest.mark.parametrize(("mode", "meant"), [("max-autotune", "max"), ("reduce-overhead", "auto"), ("default", "auto")])
def test_a_mode_of_torch_compile_gets_the_mode_that_is_meant(mode: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"mode='{mode}' is torch.compile's; here mode='{meant}' comes nearest"):
        agspeed.optimize(mlp(), mode=mode)


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [
        ("fullgraph", "that is torch.compile's; here strict=True raises"),
        ("backend", r'that is torch.compile\'s; here backends=\["inductor"\]'),
        ("disable", 'that is torch.compile\'s; here mode="off"'),
        ("budget", "`agspeed config` lists all settings"),
    ],
)
def test_a_keyword_that_optimize_lacks_is_named(keyword: str, meant: str) -> None:
    with pytest.raises(UserTypeError, match=f"optimize has no keyword '{keyword}'.*{meant}"):
        agspeed.optimize(mlp(), **{keyword: True})


def test_an_optimizer_of_another_model_is_named(caplog: pytest.LogCaptureFixture) -> None:
    foreign = torch.optim.SGD(mlp().parameters(), lr=0.1)
    agspeed.optimize(mlp(), foreign, mode="deterministic")
    assert "the SGD handed to optimize holds no parameter of this Sequential: it trains another model" in caplog.text


def test_a_second_call_with_another_mode_applies_it() -> None:
    model = agspeed.optimize(mlp(), mode="auto")
    assert agspeed.optimize(model, mode="max") is model
    session = session_of(model)
    assert session is not None and session.settings.mode == "max"


def test_a_second_call_with_mode_off_switches_off() -> None:
    model = agspeed.optimize(mlp(), mode="auto")
    agspeed.optimize(model, mode="off")
    assert session_of(model) is None and "switched off" in agspeed.status(model).reason


def test_a_second_call_that_changes_nothing_keeps_the_session() -> None:
    model = agspeed.optimize(mlp(), mode="max")
    session = session_of(model)
    agspeed.optimize(model)
    agspeed.optimize(model, mode="max")
    assert session_of(model) is session


def test_a_second_call_for_a_step_function_with_another_mode_is_refused() -> None:
    @agspeed.optimize(mode="auto")
    def step() -> None:
        """Runs one training step."""

    with pytest.raises(UserError, match="step is optimized already, with another mode"):
        agspeed.optimize(step, mode="max")
    assert agspeed.optimize(step) is step


def test_a_printed_status_says_why() -> None:
    model = agspeed.optimize(mlp(), mode="off")
    status = agspeed.status(model)
    assert status == "eager" and str(status) == str(agspeed.wait(model))
    assert str(status).startswith("eager: agspeed is switched off (")
