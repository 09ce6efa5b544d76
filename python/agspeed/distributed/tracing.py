# SPDX-License-Identifier: Apache-2.0
"""A timeline for chrome://tracing and Perfetto: the traffic of each rail, and the operations of each group.

    with agspeed.distributed.trace(f"trace-rank{rank}.json"):
        train_some_steps()

A thread samples the counters and the flight record every few milliseconds; it does not change the transport. Times are
microseconds since 1970. To join the files of several ranks, concatenate their lists of events.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agspeed import files
from agspeed.distributed import metrics
from agspeed.errors import UserError

__all__ = ["trace"]

_DIRECTIONS = ("bytes_sent", "bytes_received")


@contextlib.contextmanager
def trace(path: str | os.PathLike[str], group: Any = None, interval_s: float = 0.01) -> Iterator[None]:
    """Writes the timeline of the block to `path`, even if the block raises an exception.

    The flight record keeps the last 512 operations of a group. If a group runs more within `interval_s`, the timeline
    lacks some of them. Every rank needs a path of its own. Raises: UserError if the group has another backend, the
    interval is not positive or the path's folder does not exist.
    """
    if not interval_s > 0:
        raise UserError(f"interval_s={interval_s!r} is not valid: write a number of seconds above 0.")
    if not Path(path).parent.is_dir():
        raise UserError(
            f"trace({os.fspath(path)!r}) has no place to write to: make the folder {Path(path).parent} first."
        )
    recording = _Recording(group)
    stop = threading.Event()

    def look_until_stopped() -> None:
        while not stop.wait(interval_s):
            recording.look()

    thread = threading.Thread(target=look_until_stopped, name="agspeed-trace", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        recording.look()
        files.write(path, json.dumps({"traceEvents": recording.events}) + "\n")


class _Recording:
    """The events so far. Not thread-safe."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._counters = metrics.counters(group)
        self._looked_at = self._began = time.time()
        self._seen: set[tuple[str, int]] = set()
        rank = self._counters["rank"]
        name = f"rank {rank} of {self._counters['world_size']}"
        self.events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": name}}
        ]

    def look(self) -> None:
        before, then = self._counters, self._looked_at
        self._counters, self._looked_at = metrics.counters(self._group), time.time()
        seconds = max(self._looked_at - then, 1e-6)
        for index, (old, new) in enumerate(zip(before["rails"], self._counters["rails"], strict=True)):
            speeds = {name: round((new[name] - old[name]) / seconds / 1e6, 3) for name in _DIRECTIONS}
            self._add("C", f"rail {index} {new['interface']} MB/s", then, args=speeds)
        for each in metrics.flight_record(self._group)["groups"]:
            for operation in each["operations"]:
                self._add_operation(each["name"], operation)

    def _add_operation(self, group: str, operation: Mapping[str, Any]) -> None:
        key = (group, operation["sequence"])
        ended_at = operation["started_at"] + operation["seconds"]
        if operation["state"] == "under way" or ended_at < self._began or key in self._seen:
            return
        self._seen.add(key)
        count = max(sum(operation[side]) for side in ("input_sizes", "output_sizes"))
        name = f"{operation['operation']} {count} x {operation['dtype']}"
        shared = {"cat": group, "id": f"{group}/{operation['sequence']}"}
        self._add("b", name, operation["started_at"], **shared, args=dict(operation))
        self._add("e", name, ended_at, **shared)

    def _add(self, phase: str, name: str, seconds: float, **more: Any) -> None:
        row = {"ph": phase, "name": name, "pid": self._counters["rank"], "tid": 0, "ts": round(seconds * 1e6, 3)}
        self.events.append({**row, **more})
