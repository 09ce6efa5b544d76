# SPDX-License-Identifier: Apache-2.0
"""What a controller needs of the session that it steers."""

from __future__ import annotations

from typing import Any, Protocol

from agspeed.backends import CompileOptions
from agspeed.config import Settings
from agspeed.distributed.meetings import Meetings
from agspeed.tuning.outcome import Outcome


class Journal(Protocol):
    """Where a controller notes what it does."""

    start_up_seconds: float
    capture_seconds: float

    def enter_phase(self, name: str) -> None: ...
    def stood_still(self, kind: str, seconds: float, candidate: str | None = None) -> None: ...


class Steerable(Protocol):
    """The verbs of a session that a controller may use."""

    @property
    def history(self) -> Journal: ...

    regions: list[Any]
    settings: Settings
    target: Any
    """Has the `name` of what is tuned."""
    options: CompileOptions
    plan: str
    home: Any
    """Where the target works: its `device`; `max_late`, the steps that may run before the time of one is known; the
    `meter` of its memory, None on the CPU."""
    meetings: Meetings | None
    """Of ranks that tune together, with this rank's copy of their tuner; None where this process tunes alone."""

    runner: Any
    """Runs the target: whether the latest step `must_capture_again`, and whether it `take_disturbed` ran otherwise than
    the plan says."""

    def run_plan(self, plan: str) -> None: ...
    def settle(self, arm: str, reason: str) -> None: ...
    def compile_part(self, plan: str, region: Any) -> Outcome | None: ...
