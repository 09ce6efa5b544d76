# SPDX-License-Identifier: Apache-2.0
"""What a user sees of tuning who waits for it (mode="max"): the progress, in the words and seconds of the tuner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agspeed.config import Settings
from agspeed.reporting.progress import Progress
from agspeed.tuning.forecast import forecast, guess
from agspeed.tuning.plan import EAGER

_ACTIVITIES = {"compile": "compiling", "wait": "compiling", "load": "checking", "run": "timing"}


class Waiting:
    """Shows nothing in other modes. The training thread owns it.

    Args:
        subject: the name of what is tuned.
        arms: the arms of the tuner's snapshot, as of now.
    """

    def __init__(self, subject: str, settings: Settings, arms: Callable[[], Sequence[dict[str, Any]]]) -> None:
        self._subject, self._settings, self._arms = subject, settings, arms
        self._is_waited_for = settings.mode == "max" and settings.progress
        self._progress = Progress(enabled=self._is_waited_for)

    def begin(self, num_modules: int, candidates: Sequence[str]) -> None:
        """Nothing is known of the target yet: tuning starts from nothing, with these candidates."""
        self._progress.begin(self._subject, guess(candidates, num_modules))

    def show(self, kind: str, arm: str, regions: Sequence[Any]) -> None:
        """An action of the tuner begins."""
        activity = _ACTIVITIES.get(kind)
        if activity is None or arm == EAGER or not self._is_waited_for:
            return
        found = forecast(self._arms(), sum(region.num_operators for region in regions))
        number = min(found.num_through + 1, found.num_arms)
        self._progress.update(found.share, f"{activity} {arm}, {number} of {found.num_arms}", found.left_s)

    def interrupt(self, kept: str) -> None:
        """Ctrl-C while training waits, in any mode: one line says what was `kept`."""
        self._progress.clear()
        Progress(enabled=self._settings.progress).end(f"{self._subject}: interrupted while tuning: {kept}")

    def end(self, arm: str, reason: str) -> None:
        """The tuner has decided."""
        decision = reason if reason.startswith(arm) else f"{arm}, {reason}"
        self._progress.end(f"{self._subject}: {decision}; agspeed.report(model) shows all")
