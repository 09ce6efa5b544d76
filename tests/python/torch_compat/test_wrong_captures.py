# SPDX-License-Identifier: Apache-2.0
"""The table of wrong captures: plain Dynamo really captures each kind wrongly that applies to this torch."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agspeed.torch_compat import wrong_captures
from agspeed.torch_compat.wrong_captures import WrongCapture
from tests.python.frontend.shadow.custom_functions import InPlaceOnAClone, NoMaterializedGradients
from tests.python.frontend.shadow.python_states import ClassFloat, FullDeque, MoveToEnd

CASES: dict[str, tuple[WrongCapture, Callable[[], Any]]] = {
    "full deque": (wrong_captures.FULL_DEQUE, FullDeque),
    "order": (wrong_captures.ORDER, MoveToEnd),
    "missing gradients": (wrong_captures.MISSING_GRADIENTS, NoMaterializedGradients),
    "class constants": (wrong_captures.CLASS_CONSTANTS, ClassFloat),
    "function in place": (wrong_captures.FUNCTION_IN_PLACE, InPlaceOnAClone),
}


def _results(kind: Callable[[], Any], compiled: bool) -> list[torch.Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = kind()
    call = torch.compile(model, backend="eager") if compiled else model
    width = next(model.parameters()).shape[1]
    results = []
    for step in range(8):
        if step == 6 and hasattr(model, "turn"):
            model.turn()
        model.zero_grad()
        output = call(torch.ones(3, width))
        output.sum().backward()
        results += [
            output.detach().clone(),
            *(value.grad.clone() for value in model.parameters() if value.grad is not None),
        ]
    return results


@pytest.mark.parametrize("name", CASES)
def test_plain_dynamo_is_wrong_where_the_table_says_so(name: str) -> None:
    kind, module = CASES[name]
    try:
        pairs = zip(_results(module, True), _results(module, False), strict=True)
        is_right = all(torch.allclose(mine, expected) for mine, expected in pairs)
    except Exception:
        is_right = False
    assert is_right is not kind.applies, f"{kind.name}: set `until` in wrong_captures.py"


def test_every_kind_has_a_case() -> None:
    assert {kind.name for kind, _ in CASES.values()} == {kind.name for kind in wrong_captures.ALL}


def test_ordinary_containers_are_captured() -> None:
    assert wrong_captures.of_changed([1]) is None
    assert wrong_captures.of_changed({"a": 1}) is None
    assert wrong_captures.of_changed(collections.deque([1])) is None
