# SPDX-License-Identifier: Apache-2.0
"""Outcome: what became of one candidate on one region."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agspeed.backends.base import Runner


@dataclass
class Outcome:
    """State of a candidate on a region; the report prints it.

    state: "ready", "skipped" (not tried, see reason), "failed" (compile or run error) or "rejected" (by the gate).
    """

    candidate: str
    state: str
    reason: str = ""
    runner: Runner | None = None
    compile_seconds: float = 0.0
    gate_seconds: float = 0.0
    gate: dict[str, Any] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return self.state == "ready" and self.runner is not None

    def fail(self, reason: str) -> None:
        """Marks a ready candidate as failed at run time."""
        self.state, self.reason, self.runner = "failed", reason, None
