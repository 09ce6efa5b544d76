# SPDX-License-Identifier: Apache-2.0
"""The driver passes a tuner's actions on until none is left, and reports the steps that the tuner did not need."""

from __future__ import annotations

from typing import Any

from agspeed.tuning.driver import FOREVER, TunerDriver


class Tuner:
    """A tuner that gives the lists of `actions`, one for each call, and records the skipped steps."""

    def __init__(self, *actions: list[str]) -> None:
        self.actions = [[{"kind": kind} for kind in kinds] for kinds in actions]
        self.quiet_steps: int | None = 0
        self.skipped: list[tuple[int, float]] = []

    def advance(self) -> list[dict[str, Any]]:
        return self.actions.pop(0) if self.actions else []

    def steps_skipped(self, count: int, seconds: float) -> None:
        self.skipped.append((count, seconds))


def _carried_out(tuner: Tuner, answers: set[str]) -> list[str]:
    seen = []

    def carry_out(action: Any) -> bool:
        seen.append(action["kind"])
        return action["kind"] in answers

    TunerDriver(tuner).advance(carry_out)  # type: ignore[arg-type]
    return seen


def test_the_tuner_continues_after_an_answer() -> None:
    tuner = Tuner(["load"], ["compile", "run"], ["decide"])
    assert _carried_out(tuner, {"load", "compile"}) == ["load", "compile", "run", "decide"]


def test_it_waits_for_the_next_step_without_an_answer() -> None:
    tuner = Tuner(["run"], ["decide"])
    assert _carried_out(tuner, set()) == ["run"]
    assert len(tuner.actions) == 1


def test_passed_steps_are_reported_once_and_together() -> None:
    tuner = Tuner()
    driver = TunerDriver(tuner)  # type: ignore[arg-type]
    tuner.quiet_steps = 3
    assert driver.rest() == driver.num_quiet == 3
    driver.pass_steps(1, 0.5)
    driver.pass_steps(4, 1.5)
    assert driver.num_quiet == 0
    driver.report_passed()
    driver.report_passed()
    assert tuner.skipped == [(5, 2.0)]


def test_a_tuner_that_needs_no_more_steps_can_be_woken() -> None:
    tuner = Tuner()
    driver = TunerDriver(tuner)  # type: ignore[arg-type]
    tuner.quiet_steps = None
    assert driver.rest() == FOREVER
    driver.wake()
    assert driver.num_quiet == 0
