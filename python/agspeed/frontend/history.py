# SPDX-License-Identifier: Apache-2.0
"""What happened during a session, in bounded memory: step times, capture events, fallbacks. Source of the report."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from agspeed.reporting.timeline import TimelineRecorder


@dataclass
class History:
    """Record of one session; events are counted per place and reason."""

    started: float = field(default_factory=time.time)
    timeline: TimelineRecorder = field(default_factory=TimelineRecorder)
    breaks: Counter[tuple[str, str]] = field(default_factory=Counter)
    recompiles: Counter[tuple[str, str]] = field(default_factory=Counter)
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    foreground_seconds: float = 0.0
    phase: str = "eager"

    def add_step(self, plan: str, busy: float, input_wait: float) -> None:
        candidate = None if plan == "eager" else plan
        self.timeline.add(1e3 * busy, wait_ms=1e3 * input_wait, phase=self.phase, candidate=candidate)

    def add_capture_event(self, kind: str, reason: str, where: str) -> None:
        counters = {"graph-break": self.breaks, "recompile": self.recompiles}
        counters.get(kind, self.fallbacks)[(where, reason)] += 1

    def add_fallback(self, where: str, reason: str) -> None:
        self.fallbacks[(where, reason)] += 1

    def enter_phase(self, name: str) -> None:
        """What the next steps are spent on: "eager", "capture", "compile", "gate", "trial" or "steady"."""
        self.phase = name
