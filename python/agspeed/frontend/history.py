# SPDX-License-Identifier: Apache-2.0
"""Records a session's step times, capture events and fallbacks in bounded memory. The report is made from it."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agspeed.frontend.steps import StepTimes
from agspeed.reporting.timeline import TimelineRecorder

if TYPE_CHECKING:
    from agspeed.regions.outcome import Outcome

_RECENT_STEPS = 128
"""The number of recent steps that are averaged for "where time goes"."""


@dataclass
class History:
    """The record of one session. Events are counted per place and reason."""

    started: float = field(default_factory=time.time)
    timeline: TimelineRecorder = field(default_factory=TimelineRecorder)
    breaks: Counter[tuple[str, str]] = field(default_factory=Counter)
    recompiles: Counter[tuple[str, str]] = field(default_factory=Counter)
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    recent: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    recent_plan: str = "eager"
    start_up_seconds: float = 0.0
    """Time before the first step: loading agspeed, setting up the session, finding earlier decisions."""
    capture_seconds: float = 0.0
    phase: str = "eager"
    lost: str = ""
    """A sentence about the candidates that this torch does not support; "" if it supports all."""

    def add_step(self, plan: str, times: StepTimes) -> None:
        candidate = None if plan == "eager" else plan
        self.timeline.add(1e3 * times.busy, wait_ms=1e3 * times.input_wait, phase=self.phase, candidate=candidate)
        if plan != self.recent_plan:
            self.recent.clear()
            self.recent_plan = plan
        self.recent.append(times)

    def stood_still(self, kind: str, seconds: float, candidate: str | None = None) -> None:
        """Records that training has just waited for a "start-up", a "capture" or a "compile"."""
        self.timeline.pause(kind, seconds, candidate)

    def compiled(self, candidate: str, outcome: Outcome | None, seconds: float) -> None:
        """Records that training has just waited for a part of a compile. outcome: given after the last part; its gate
        time is shown as a check."""
        checking = min(outcome.gate_seconds, seconds) if outcome is not None else 0.0
        self.timeline.pause("compile", seconds - checking, candidate, before_s=checking)
        self.timeline.pause("gate", checking, candidate)

    def typical_step_seconds(self) -> float:
        """Returns the median time of recent steps with the plan in force. Requires: there was such a step."""
        return statistics.median(times.busy for times in self.recent)

    def add_capture_event(self, kind: str, reason: str, where: str) -> None:
        counters = {"graph-break": self.breaks, "recompile": self.recompiles}
        counters.get(kind, self.fallbacks)[(where, reason)] += 1

    def add_fallback(self, where: str, reason: str) -> None:
        self.fallbacks[(where, reason)] += 1

    def enter_phase(self, name: str) -> None:
        """Sets the purpose of the next steps: "eager", "capture", "compile", "gate", "trial" or "steady"."""
        self.phase = name
