# SPDX-License-Identifier: Apache-2.0
"""Python state that forward reads or changes: training goes on as eager's after a change, and effects are eager's."""

from __future__ import annotations

import random

import pytest
import torch

import agspeed
from agspeed import native
from agspeed.frontend.session import session_of
from agspeed.torch_compat import release
from tests.python.frontend.shadow.python_states import STATES, WIDTH, Reading
from tests.python.support.pairs import pairs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
_SEED, _TURN, _STEPS = 5, 10, 14
_OLD = release.minor() < (2, 15)
_UNSEEN = {"OwnClassByType", "DefaultArgument", "CountsOnItsClass", "ListOnItsClass"} if _OLD else set()
"""States that agspeed does not see under older releases of torch, whose Dynamo names no source to guard."""


def _trained(kind: type[Reading], backend: str | None) -> tuple[Reading, list[torch.Tensor]]:
    """Trains a model whose state changes half-way."""
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    model = kind()
    if backend is not None:
        agspeed.optimize(model, mode="deterministic", backends=[backend])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(_STEPS):
        if step == _TURN:
            model.turn()
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH)).square().sum().backward()
        optimizer.step()
    return model, [value.detach().clone() for value in model.parameters()]


@pytest.mark.parametrize(("kind", "backend"), pairs(STATES, ["aot", "native"]))
def test_weights_and_effects_are_eagers(kind: type[Reading], backend: str) -> None:
    if kind.__name__ in _UNSEEN:
        pytest.skip(f"torch {release.version()} captures it without a guard")
    eager, expected = _trained(kind, None)
    state = {name: value for name, value in (vars(kind) | vars(eager)).items() if isinstance(value, int | float)}
    model, actual = _trained(kind, backend)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{text} (seed {_SEED})")
    assert {name: getattr(model, name) for name in state} == state
    session = session_of(model)
    assert session is not None and session.runner.comparison is not None
    is_captured = any(backend == region.selected for region in session.regions) and agspeed.status(model) == "tuned"
    assert is_captured or session.runner.comparison.finding or session.history.fallbacks, agspeed.status(model).reason
