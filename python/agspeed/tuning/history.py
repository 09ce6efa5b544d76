# SPDX-License-Identifier: Apache-2.0
"""What happened during a session, kept small: step times, capture events, fallbacks, phases. The report is made from it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

_MAX_STEPS = 200_000


@dataclass
class Phase:
    """A stretch of steps spent on one activity ("eager", "capture", "compile", "trial", "steady")."""

    name: str
    first_step: int
    seconds: float = 0.0


@dataclass
class History:
    """Append-only record of a session."""

    started: float = field(default_factory=time.time)
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    """(plan, busy seconds, input wait seconds) per training step, the first `_MAX_STEPS` of them."""
    num_steps: int = 0
    breaks: Counter[tuple[str, str]] = field(default_factory=Counter)
    recompiles: Counter[tuple[str, str]] = field(default_factory=Counter)
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    phases: list[Phase] = field(default_factory=list)
    foreground_seconds: float = 0.0

    def add_step(self, plan: str, busy: float, input_wait: float) -> None:
        self.num_steps += 1
        if len(self.steps) < _MAX_STEPS:
            self.steps.append((plan, busy, input_wait))

    def add_capture_event(self, kind: str, reason: str, where: str) -> None:
        counters = {"graph-break": self.breaks, "recompile": self.recompiles}
        counters.get(kind, self.fallbacks)[(where, reason)] += 1

    def add_fallback(self, where: str, reason: str) -> None:
        self.fallbacks[(where, reason)] += 1

    def enter_phase(self, name: str) -> None:
        if not self.phases or self.phases[-1].name != name:
            self.phases.append(Phase(name, self.num_steps))
