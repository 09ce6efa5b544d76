# SPDX-License-Identifier: Apache-2.0
"""The interface through which a controller uses its session."""

from __future__ import annotations

from typing import Any, Protocol

from agspeed.backends import CompileOptions
from agspeed.config import Settings
from agspeed.distributed.meetings import Meetings
from agspeed.tuning.outcome import Outcome


class Journal(Protocol):
    """The log of a controller's actions."""

    start_up_seconds: float
    capture_seconds: float

    def enter_phase(self, name: str) -> None: ...
    def stood_still(self, kind: str, seconds: float, candidate: str | None = None) -> None: ...


class Steerable(Protocol):
    """The attributes and methods of a session that a controller uses."""

    @property
    def history(self) -> Journal: ...

    regions: list[Any]
    settings: Settings
    target: Any
    """The module or step function being tuned; it has a `name`."""
    options: CompileOptions
    plan: str
    home: Any
    """The target's device context: `device`; `max_late`, the number of steps that may run before the time of one is
    known; and `meter`, the device's memory meter, None on the CPU."""
    meetings: Meetings | None
    """Connects ranks that tune together and holds this rank's copy of their tuner; None if this process tunes alone."""

    runner: Any
    """Runs the target. `must_capture_again` says whether the latest step must be captured again, and `take_disturbed`
    whether it ran differently from its plan."""

    def run_plan(self, plan: str) -> None: ...
    def settle(self, arm: str, reason: str) -> None: ...
    def compile_part(self, plan: str, region: Any) -> Outcome | None: ...
