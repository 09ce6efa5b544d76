# SPDX-License-Identifier: Apache-2.0
"""TunerDriver: the loop between training steps and a tuner (runtime/tune), which has no clock and no thread.

An owner reports a step to the tuner, and the driver passes the tuner's actions to the owner until none is left. The
tuner does not need each step: the driver counts the steps that may pass, and reports them together with the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agspeed._native import GroupTuner, Tuner, TunerAction

FOREVER = 1 << 30
"""A number of steps that is never reached."""


class RanStep(NamedTuple):
    """A training step at its end, for steps whose time is known only later.

    arm: the tuner's name for the plan that ran. peak_bytes: 0 if unknown. is_disturbed: the step captured graphs, or
    did not run as its plan says."""

    arm: str
    peak_bytes: int
    is_disturbed: bool


class TunerDriver:
    """Drives one tuner, on the training thread."""

    def __init__(self, tuner: Tuner | GroupTuner) -> None:
        self.tuner = tuner
        self.num_quiet = 0
        """How many steps the tuner does not need, from the one that has just ended on."""
        self._unseen = (0, 0.0)

    def pass_steps(self, count: int, seconds: float) -> None:
        """Notes `count` steps that the tuner did not need; they took `seconds` in all."""
        self.num_quiet = max(0, self.num_quiet - count)
        self._unseen = (self._unseen[0] + count, self._unseen[1] + seconds)

    def report_passed(self) -> None:
        """Reports the noted steps. Call it before the report of a step."""
        if self._unseen[0]:
            self.tuner.steps_skipped(*self._unseen)
            self._unseen = (0, 0.0)

    def advance(self, carry_out: Callable[[TunerAction], bool]) -> None:
        """Lets the tuner decide. carry_out: carries out one action, and returns True if it reported a result to the
        tuner, which can then continue."""
        has_answer = True
        while has_answer:
            has_answer = False
            for action in self.tuner.advance():
                has_answer |= carry_out(action)

    def rest(self) -> int:
        """Returns how many next steps the tuner does not need, and lets them pass; `FOREVER`: it needs no more."""
        quiet = self.tuner.quiet_steps
        self.num_quiet = FOREVER if quiet is None else quiet
        return self.num_quiet

    def wake(self) -> None:
        """Makes the tuner need the step that ends next."""
        self.num_quiet = 0
