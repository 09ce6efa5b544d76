# SPDX-License-Identifier: Apache-2.0
"""The state of a plan in a report follows from states, verdicts and numbers, and not from the wording of a reason."""

from __future__ import annotations

from typing import Any

import pytest

from agspeed.frontend.report_candidates import plan_state
from agspeed.regions.outcome import Outcome
from agspeed.regions.state import State


def _shown(*outcomes: Outcome, chosen: str | None = None, **facts: Any) -> str:
    arm = {
        "name": "native",
        "state": State.READY,
        "verdict": "open",
        "is_too_large": False,
        "reason": "",
        "ratio": None,
    }
    decision = {"arm": chosen} if chosen is not None else None
    return plan_state(arm | facts, {"decision": decision}, outcomes)  # type: ignore[arg-type, typeddict-item]


def _refused(verdict: str) -> Outcome:
    return Outcome("native", State.REJECTED, "it differs", gate={"verdict": verdict})


@pytest.mark.parametrize("reason", ["", "it is slower than its memory"])
def test_a_lost_plan_was_slower_unless_it_needed_too_much_memory(reason: str) -> None:
    assert _shown(verdict="lost", reason=reason) == "slower"
    assert _shown(verdict="lost", reason=reason, is_too_large=True) == "memory"


def test_a_rejected_plan_was_wrong_only_if_the_gate_found_a_difference() -> None:
    assert _shown(_refused("rejected"), state=State.REJECTED) == "wrong"
    assert _shown(_refused("not-run"), state=State.REJECTED) == "skipped"
    assert _shown(state=State.REJECTED) == "wrong", "another rank has rejected it"


@pytest.mark.parametrize("state", [State.FAILED, State.SKIPPED])
def test_a_failed_or_skipped_plan_keeps_its_state(state: State) -> None:
    assert _shown(state=state) == state.value


def test_plans_are_pending_until_the_decision() -> None:
    assert _shown(state=State.COMPILING) == "pending"
    assert _shown(state=State.COMPILING, chosen="aot") == "skipped"
    assert _shown(ratio={"estimate": 0.9}, chosen="aot") == "slower"
    assert _shown(chosen="native") == "chosen"
