# SPDX-License-Identifier: Apache-2.0
"""What happened during a session, in bounded memory: step times, capture events, fallbacks. Source of the report."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agspeed.frontend.steps import StepTimes
from agspeed.reporting.timeline import TimelineRecorder

if TYPE_CHECKING:
    from agspeed.tuning.outcome import Outcome

_RECENT_STEPS = 128
"""Steps whose parts are averaged for "where time goes"."""


@dataclass
class History:
    """Record of one session; events are counted per place and reason."""

    started: float = field(default_factory=time.time)
    timeline: TimelineRecorder = field(default_factory=TimelineRecorder)
    breaks: Counter[tuple[str, str]] = field(default_factory=Counter)
    recompiles: Counter[tuple[str, str]] = field(default_factory=Counter)
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    recent: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    recent_plan: str = "eager"
    start_up_seconds: float = 0.0
    """Before the first step: loading agspeed, setting up the session, looking up earlier decisions."""
    capture_seconds: float = 0.0
    phase: str = "eager"
    lost: str = ""
    """A sentence on the candidates that this torch does not fit; "" where it fits all."""

    def add_step(self, plan: str, times: StepTimes) -> None:
        candidate = None if plan == "eager" else plan
        self.timeline.add(1e3 * times.busy, wait_ms=1e3 * times.input_wait, phase=self.phase, candidate=candidate)
        if plan != self.recent_plan:
            self.recent.clear()
            self.recent_plan = plan
        self.recent.append(times)

    def stood_still(self, kind: str, seconds: float, candidate: str | None = None) -> None:
        """Training waited until now for a "start-up", a "capture" or a "compile"."""
        self.timeline.pause(kind, seconds, candidate)

    def compiled(self, candidate: str, outcome: Outcome | None, seconds: float) -> None:
        """Training waited until now for a part of a compile, and for the check where that is its `outcome`."""
        checking = min(outcome.gate_seconds, seconds) if outcome is not None else 0.0
        self.timeline.pause("compile", seconds - checking, candidate, before_s=checking)
        self.timeline.pause("gate", checking, candidate)

    def typical_step_seconds(self) -> float:
        """Median of the recent steps with the plan in force. Requires: there was one."""
        return statistics.median(times.busy for times in self.recent)

    def add_capture_event(self, kind: str, reason: str, where: str) -> None:
        counters = {"graph-break": self.breaks, "recompile": self.recompiles}
        counters.get(kind, self.fallbacks)[(where, reason)] += 1

    def add_fallback(self, where: str, reason: str) -> None:
        self.fallbacks[(where, reason)] += 1

    def enter_phase(self, name: str) -> None:
        """What the next steps are spent on: "eager", "capture", "compile", "gate", "trial" or "steady"."""
        self.phase = name
