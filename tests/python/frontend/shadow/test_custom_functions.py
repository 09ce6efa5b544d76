# SPDX-License-Identifier: Apache-2.0
"""Custom autograd functions train to eager's weights, in each backend, or eagerly with the reason."""

from __future__ import annotations

import pytest
import torch

import agspeed
from agspeed import native
from agspeed.frontend.session import session_of
from tests.python.frontend.shadow.custom_functions import FORMS, WIDTH, Scale, Using
from tests.python.support.pairs import pairs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
_SEED = 5


def _trained(kind: type[Using], backend: str | None) -> tuple[list[torch.Tensor], Using]:
    torch.manual_seed(_SEED)
    model, Scale.value = kind(), 1.0
    if backend is not None:
        agspeed.optimize(model, mode="deterministic", backends=[backend])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(6):
        Scale.value = 1.0 if step < 4 else 3.0
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH)).square().sum().backward()
        optimizer.step()
    return [value.detach().clone() for value in model.parameters()], model


# Inductor compiles for seconds, and capture is the same.
_WITH_INDUCTOR = [
    pytest.param(kind, "inductor", marks=[] if place == 0 else pytest.mark.thorough) for place, kind in enumerate(FORMS)
]


@pytest.mark.parametrize(
    ("kind", "backend"),
    [*pairs(FORMS, ["aot", "native"]), *_WITH_INDUCTOR],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_weights_are_eagers(kind: type[Using], backend: str) -> None:
    expected, _ = _trained(kind, None)
    actual, model = _trained(kind, backend)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{text} (seed {_SEED})")
    session = session_of(model)
    assert session is not None and session.runner.comparison is not None
    is_captured = any(backend == region.selected for region in session.regions) and agspeed.status(model) == "tuned"
    refused = [outcome.reason for region in session.regions for outcome in region.outcomes.values() if outcome.reason]
    refused += [reason for _, reason in session.history.fallbacks]
    assert is_captured or session.runner.comparison.finding or refused, agspeed.status(model).reason
