# SPDX-License-Identifier: Apache-2.0
"""The status of a TrainJob as this process has reported it so far, and the text of the next report.

The server replaces the whole status by each report. So values that a call leaves out come from earlier calls here.

Threading: any thread may call the functions.
"""

from __future__ import annotations

import atexit
import collections
import json
import math
import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agspeed.cluster.reporter import Reporter
from agspeed.cluster.status_server import LARGEST_NUMBER, StatusServer

__all__ = ["MOST_METRICS", "Pace", "TrainerStatus"]

MOST_METRICS = 200
"""The server takes 256 metrics in 64 KiB. 200 of the longest fit into that."""
_TIMEOUT_S = 3.0
_LAST_S = 4.0
"""How long the end of a process waits for its last report."""
_WINDOW_S, _MARK_S = 60.0, 5.0


class Pace:
    """The speed of the last minute. A step below the last one begins anew: a job goes on from a checkpoint."""

    def __init__(self) -> None:
        self._marks: collections.deque[tuple[float, int]] = collections.deque()

    def per_second(self, step: int, now: float) -> float | None:
        """Notes that a step is done, and returns the steps per second. Returns: None if it is not known yet."""
        if self._marks and step < self._marks[-1][1]:
            self._marks.clear()
        if not self._marks or now - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now, step))
        while len(self._marks) > 1 and now - self._marks[1][0] >= _WINDOW_S:
            self._marks.popleft()
        began, first = self._marks[0]
        return (step - first) / (now - began) if step > first and now > began else None


class TrainerStatus:
    """The status of this process's TrainJob. Without a server in the environment, nothing is kept or sent."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._server = StatusServer.of(environ)
        self._reporter: Reporter | None = None
        self._pace = Pace()
        self._progress: dict[str, int] = {}
        self._metrics: dict[str, str] = {}  # the oldest first

    def report(
        self,
        steps: tuple[int, int] | None,
        percentage: int | None,
        remaining_s: int | None,
        metrics: Mapping[str, str],
    ) -> None:
        """Reports the newest values. steps: how many are done, and how many there are in all."""
        if self._server is None:
            return
        with self._lock:
            if steps is not None:
                speed = self._pace.per_second(steps[0], time.monotonic())
                percentage = _percentage(*steps) if percentage is None else percentage
                remaining_s = _remaining_s(*steps, speed) if remaining_s is None else remaining_s
                metrics = _metrics_of(*steps, speed) | dict(metrics)
            self._keep(percentage, remaining_s, metrics)
            if self._reporter is None:
                self._reporter = _reporter(self._server)
            self._reporter.put(self._text())

    def _keep(self, percentage: int | None, remaining_s: int | None, metrics: Mapping[str, str]) -> None:
        """Both numbers are replaced together, because the seconds belong to the percentage."""
        if percentage is not None or remaining_s is not None:
            found = {"progressPercentage": percentage, "estimatedRemainingSeconds": remaining_s}
            self._progress = {name: value for name, value in found.items() if value is not None}
        for name, text in metrics.items():
            self._metrics.pop(name, None)
            self._metrics[name] = text
        while len(self._metrics) > MOST_METRICS:
            self._metrics.pop(next(iter(self._metrics)))

    def _text(self) -> bytes:
        status: dict[str, Any] = {
            **self._progress,
            "metrics": [{"name": name, "value": value} for name, value in self._metrics.items()],
            "lastUpdatedTime": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return json.dumps({"trainerStatus": status}, ensure_ascii=False).encode()


def _percentage(step: int, num_steps: int) -> int:
    return min(100, 100 * step // num_steps)


def _remaining_s(step: int, num_steps: int, speed: float | None) -> int | None:
    if step >= num_steps:
        return 0
    return None if speed is None else min(LARGEST_NUMBER, math.ceil((num_steps - step) / speed))


def _metrics_of(step: int, num_steps: int, speed: float | None) -> dict[str, str]:
    found = {"step": str(step), "num_steps": str(num_steps)}
    return found if speed is None else found | {"steps_per_second": f"{speed:.6g}"}


def _reporter(server: StatusServer) -> Reporter:
    made = Reporter(
        lambda text: server.send(text, _TIMEOUT_S),
        f"the progress of this TrainJob was not reported to {server.name}",
    )
    process = os.getpid()

    def finish() -> None:
        if os.getpid() == process:  # a forked process has no thread of the reporter
            made.finish(_LAST_S)

    atexit.register(finish)
    return made
