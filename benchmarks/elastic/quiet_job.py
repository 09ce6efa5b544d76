# SPDX-License-Identifier: Apache-2.0
"""Jobs in which nothing happens, timed in blocks that follow each other there and back. Waiting jobs are idle."""

import contextlib
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from benchmarks.cells import ROOT
from benchmarks.measure.pairing import Comparison, Limits

__all__ = ["QuietJob", "compare_jobs"]

_START_S = 180
_END_S = 60
_WARM_UP_STEPS = 20


class QuietJob:
    """A job of `quiet_training.py` under `agspeed run`. `way`: "elastic" or "plain". A context manager.

    Attributes:
        advancing: the seconds of a step in `State.advance`, one number for each call of `run`, at the slowest rank.
    """

    def __init__(self, way: str, size: int) -> None:
        self.advancing: list[float] = []
        self._way, self._size = way, size
        self._stack = contextlib.ExitStack()
        self._connections: list[socket.socket] = []
        self._ranks: list[TextIOWrapper] = []

    def __enter__(self) -> "QuietJob":
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agspeed-quiet-")))
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(folder / "socket"))
            server.listen(self._size)
            server.settimeout(_START_S)
            launcher = self._start(folder)
            stack.callback(_end, launcher)
            for _ in range(self._size):
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    log = (folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
                    raise RuntimeError(f"ranks did not come within {_START_S} s:\n{log}") from None
                self._connections.append(stack.enter_context(connection))
                self._ranks.append(stack.enter_context(connection.makefile("rw", encoding="ascii")))
            stack.callback(self._hang_up)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, steps: int) -> float:
        """Lets all ranks make steps. Returns: the seconds per step of the slowest rank."""
        for rank in self._ranks:
            print(steps, file=rank, flush=True)
        answers = [rank.readline() for rank in self._ranks]
        if not all(answers):
            raise RuntimeError(f"a rank of the {self._way} job has ended")
        seconds, advancing = zip(*(map(float, answer.split()) for answer in answers), strict=True)
        self.advancing.append(max(advancing) / steps)
        return max(seconds) / steps

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        options = ["--min-np", str(self._size)] if self._way == "elastic" else []
        script = [sys.executable, "-m", "benchmarks.elastic.quiet_training", str(folder / "socket"), self._way]
        command = [sys.executable, "-m", "agspeed", "run", "-np", str(self._size), *options, *script]
        paths = os.pathsep.join(
            path for path in [str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH")] if path
        )
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _hang_up(self) -> None:
        """Ends the training: a rank ends when the connection does."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the rank has ended
                connection.shutdown(socket.SHUT_RDWR)


def compare_jobs(jobs: Sequence[QuietJob], limits: Limits) -> list[Comparison]:
    """Times all other jobs against the first one, until every comparison has a reason to stop."""
    seconds = min(job.run(_WARM_UP_STEPS) for job in jobs)
    steps = max(1, math.ceil(limits.block_seconds / seconds))
    results = [Comparison(steps) for _ in jobs[1:]]
    begun = time.monotonic()
    while not all(result.stopped for result in results):
        turn = len(results[0].reference) // 2
        order = [(turn + place) % len(jobs) for place in range(len(jobs))]
        for way in (order, order[::-1]):
            found = {}
            for index in way:
                jobs[index].run((steps + 1) // 2)  # not timed: it refills caches after the switch
                found[index] = jobs[index].run(steps)
            for index, result in enumerate(results, 1):
                result.reference.append(found[0])
                result.contender.append(found[index])
        for result in results:
            result.stopped = result.reason_to_stop(limits, time.monotonic() - begun)
    return results


def _end(launcher: subprocess.Popen[bytes]) -> None:
    try:
        launcher.wait(_END_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
