# SPDX-License-Identifier: Apache-2.0
"""Records the time of every training step in bounded memory.

Steps are averaged in buckets. When all buckets are full, neighbours are merged in pairs. So a run of any length has
between half of `capacity` and `capacity` points, each with the same number of observed steps. A step in the same phase
as the step before it extends that phase. If there are too many phases, the shortest one joins its predecessor.

Thread-safety: none; the training thread owns it. Cost: a few additions per step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agspeed.reporting import parts

__all__ = ["TimelineRecorder"]

_MAX_PHASES = 256
_MAX_PAUSES = 256
_SHORTEST_PAUSE_S = 0.001


@dataclass
class _Bucket:
    first_step: int
    at_s: float
    count: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    total_wait_ms: float = 0.0

    def add(self, ms: float, wait_ms: float) -> None:
        self.count += 1
        self.total_ms += ms
        self.max_ms = max(self.max_ms, ms)
        self.total_wait_ms += wait_ms

    def absorb(self, other: _Bucket) -> None:
        self.count += other.count
        self.total_ms += other.total_ms
        self.max_ms = max(self.max_ms, other.max_ms)
        self.total_wait_ms += other.total_wait_ms


class TimelineRecorder:
    """Records every step (`add`, `skip`) and returns the report's timeline (`to_json`)."""

    def __init__(self, capacity: int = 1024, clock: Callable[[], float] = time.perf_counter) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"capacity must be an even number of at least 2, not {capacity}")
        self._capacity = capacity
        self._width = 1
        self._steps = 0
        self._buckets: list[_Bucket] = []
        self._phases: list[dict[str, Any]] = []
        self._pauses: list[dict[str, Any]] = []
        self._clock, self._begun = clock, clock()

    @property
    def steps(self) -> int:
        """The number of steps so far, which is also the number of the next step."""
        return self._steps

    @property
    def steps_in_phase(self) -> int:
        """The number of steps since the phase or the candidate last changed."""
        return self._steps - int(self._phases[-1]["first_step"]) if self._phases else 0

    def add(self, ms: float, *, wait_ms: float = 0.0, phase: str = "eager", candidate: str | None = None) -> None:
        """Records one step: its time `ms` without input wait, the wait, and the tuner's phase (parts.phase)."""
        if not self._buckets or self._buckets[-1].count == self._width:
            if len(self._buckets) == self._capacity:
                self._merge_neighbours()
            self._buckets.append(_Bucket(self._steps, self._now(before_s=ms / 1000)))
        self._buckets[-1].add(ms, wait_ms)
        self._note_phase(phase, candidate)
        self._steps += 1

    def skip(self, steps: int) -> None:
        """Counts `steps` steps that ran unobserved, in the phase of the last step. Points keep their step numbers."""
        if self._phases:
            self._steps += steps
            self._phases[-1]["last_step"] = max(self._steps - 1, self._phases[-1]["last_step"])

    def pause(self, kind: str, seconds: float, candidate: str | None = None, *, before_s: float = 0.0) -> None:
        """Records that training stood still for `seconds`, until `before_s` ago (parts.pause). If there are too many
        pauses, the longest are kept."""
        if seconds < _SHORTEST_PAUSE_S:
            return
        at_s = self._now(before_s=before_s + seconds)
        last = self._pauses[-1] if self._pauses else None
        if last is not None and (last["kind"], last["candidate"]) == (kind, candidate) and self._follows(last, at_s):
            last["seconds"] += seconds
            return
        self._pauses.append(parts.pause(kind, at_s, seconds, candidate))
        if len(self._pauses) > _MAX_PAUSES:
            self._pauses.remove(min(self._pauses, key=lambda pause: float(pause["seconds"])))

    def to_json(self) -> dict[str, Any]:
        """Returns the report's `timeline` object."""
        buckets = self._buckets
        return {
            "step": [bucket.first_step for bucket in buckets],
            "at_s": [round(bucket.at_s, 6) for bucket in buckets],
            "ms": [round(bucket.total_ms / bucket.count, 4) for bucket in buckets],
            "max_ms": [round(bucket.max_ms, 4) for bucket in buckets],
            "wait_ms": [round(bucket.total_wait_ms / bucket.count, 4) for bucket in buckets],
            "steps": self._steps,
            "steps_per_point": self._width,
            "phases": [dict(phase) for phase in self._phases],
            "pauses": [dict(pause) for pause in self._pauses],
        }

    def _now(self, before_s: float) -> float:
        """Returns the seconds from the recorder's beginning to `before_s` ago."""
        return max(self._clock() - self._begun - before_s, 0.0)

    def _follows(self, pause: dict[str, Any], at_s: float) -> bool:
        """Returns True if no step was timed between the end of `pause` and `at_s`."""
        return bool(at_s - pause["at_s"] - pause["seconds"] < _SHORTEST_PAUSE_S)

    def _merge_neighbours(self) -> None:
        for left, right in zip(self._buckets[::2], self._buckets[1::2], strict=True):
            left.absorb(right)
        self._buckets = self._buckets[::2]
        self._width *= 2

    def _note_phase(self, kind: str, candidate: str | None) -> None:
        last = self._phases[-1] if self._phases else None
        if last is not None and last["kind"] == kind and last["candidate"] == candidate:
            last["last_step"] = self._steps
            return
        self._phases.append(parts.phase(kind, self._steps, self._steps, candidate))
        if len(self._phases) > _MAX_PHASES:
            self._drop_shortest_phase()

    def _drop_shortest_phase(self) -> None:
        # The first phase has no predecessor, and the last one is still growing.
        lengths = [phase["last_step"] - phase["first_step"] for phase in self._phases[1:-1]]
        index = 1 + lengths.index(min(lengths))
        self._phases[index - 1]["last_step"] = self._phases.pop(index)["last_step"]
