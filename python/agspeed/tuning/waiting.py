# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of tuning to a user who waits for it (mode="max")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agspeed.config import Settings
from agspeed.regions.plan import EAGER
from agspeed.reporting.progress import Progress
from agspeed.tuning.forecast import forecast, guess

if TYPE_CHECKING:
    from agspeed._native import TunerArmSnapshot
    from agspeed.regions.region import Region

_ACTIVITIES = {"compile": "compiling", "wait": "compiling", "load": "checking", "run": "timing"}


class Waiting:
    """The progress display of one session; it shows progress in mode="max" alone. The training thread owns it.

    Args:
        subject: the name of the target.
        arms: returns the arms of the tuner's current snapshot.
    """

    def __init__(self, subject: str, settings: Settings, arms: Callable[[], Sequence[TunerArmSnapshot]]) -> None:
        self._subject, self._settings, self._arms = subject, settings, arms
        self._is_waited_for = settings.mode == "max" and settings.progress
        self._progress = Progress(enabled=self._is_waited_for)

    def begin(self, num_modules: int, candidates: Sequence[str]) -> None:
        """Begins the display for tuning without an earlier decision, with these candidates."""
        self._progress.begin(self._subject, guess(candidates, num_modules))

    def show(self, kind: str, arm: str, regions: Sequence[Region]) -> None:
        """Shows that an action of the tuner begins."""
        activity = _ACTIVITIES.get(kind)
        if activity is None or arm == EAGER or not self._is_waited_for:
            return
        found = forecast(self._arms(), sum(region.num_operators for region in regions))
        number = min(found.num_through + 1, found.num_arms)
        self._progress.update(found.share, f"{activity} {arm}, {number} of {found.num_arms}", found.left_s)

    def interrupt(self, kept: str) -> None:
        """Handles Ctrl-C while training waits, in any mode: prints one line with `kept`, which says what was stored."""
        self._progress.clear()
        Progress(enabled=self._settings.progress).end(f"{self._subject}: interrupted while tuning: {kept}")

    def end(self, arm: str, reason: str) -> None:
        """Shows the tuner's decision."""
        decision = reason if reason.startswith(arm) else f"{arm}, {reason}"
        self._progress.end(f"{self._subject}: {decision}; agspeed.report(model) shows all")
