# SPDX-License-Identifier: Apache-2.0
"""Comparison with the module alone keeps the weights right, even if the table of wrong captures is switched off."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed import native
from agspeed.frontend import capture
from agspeed.frontend.session import session_of
from agspeed.torch_compat import wrong_captures
from tests.python.frontend.shadow.custom_functions import FORMS
from tests.python.frontend.shadow.python_states import DetachInPlace, FullDeque, IsCompiling, MoveToEnd

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
_SEED = 7
_STATES = (DetachInPlace, FullDeque, IsCompiling, MoveToEnd)


@pytest.fixture(autouse=True)
def nothing_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def nothing() -> Iterator[None]:
        yield

    monkeypatch.setattr(wrong_captures, "of_changed", lambda value: None)
    monkeypatch.setattr(wrong_captures, "of_graph", lambda gm: None)
    monkeypatch.setattr(wrong_captures, "left_out", lambda: ())
    monkeypatch.setattr(wrong_captures, "guarding_classes", nothing)
    monkeypatch.setattr(capture._ScopedConversion, "_is_compiling", lambda conversion, path: True)


def _trained(kind: Any, is_optimized: bool) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    model = kind()
    if is_optimized:
        agspeed.optimize(model, mode="deterministic", backends=["aot"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    width = next(model.parameters()).shape[1]
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(4, width)).square().sum().backward()
        optimizer.step()
    return model, [value.detach().clone() for value in model.parameters()]


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.thorough if place % 2 else ()) for place, kind in enumerate(FORMS)),
        *_STATES,
    ],
    ids=lambda kind: kind.__name__,
)
def test_weights_are_eagers(kind: Any) -> None:
    _, expected = _trained(kind, False)
    model, actual = _trained(kind, True)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{text} (seed {_SEED})")
    session = session_of(model)
    assert session is not None and session.runner.comparison is not None
    state = session.runner.comparison.state()
    assert state["steps"] > 0 or state["obstacle"] is not None, state


@pytest.mark.parametrize("kind", _STATES, ids=lambda kind: kind.__name__)
def test_the_difference_is_named(kind: Any) -> None:
    model, _ = _trained(kind, True)
    reason = str(agspeed.report(model).to_dict()["comparison"]["difference"])
    if kind is DetachInPlace and reason == "None":
        pytest.skip(f"torch {torch.__version__} captures it right")
    assert "other results" in reason
