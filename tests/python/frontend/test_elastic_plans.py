# SPDX-License-Identifier: Apache-2.0
"""An optimized module follows the plan of the process whose state its own process takes over."""

from __future__ import annotations

import pytest
from torch import nn

import agspeed
from agspeed import native
from agspeed.frontend.elastic_plans import PLANS
from agspeed.frontend.session import session_of

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


def replayed(module: nn.Module) -> str | None:
    session = session_of(module)
    assert session is not None
    return session.settings.replayed


def test_a_session_that_has_not_decided_replays_the_others_plan() -> None:
    module = agspeed.optimize(nn.Linear(4, 4), mode="max")
    PLANS.put(module, ["tuned", "aot"])
    assert replayed(module) == "aot"


def test_a_session_that_is_opened_later_replays_it_once() -> None:
    module = nn.Linear(4, 4)
    PLANS.put(module, ["tuned", "aot"])
    agspeed.optimize(module, mode="max")
    assert replayed(module) == "aot"
    agspeed.optimize(agspeed.restore(module), mode="max")
    assert replayed(module) is None


@pytest.mark.parametrize("value", [None, ["tuning", "eager"], ["tuned", "no plan: x"], ["tuned", 3], "tuned"])
def test_without_a_plan_the_session_stays_as_it_is(value: object) -> None:
    module = agspeed.optimize(nn.Linear(4, 4), mode="max")
    session = session_of(module)
    PLANS.put(module, value)
    assert session_of(module) is session
    assert PLANS.of(module) == ["tuning", "eager"] and PLANS.of(nn.Linear(4, 4)) is None
