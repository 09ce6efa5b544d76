# SPDX-License-Identifier: Apache-2.0
"""Processes that take turns: one runs while the others and all their children are stopped, on the same machine.

Runs of a minute each, one after another, cannot be compared on a machine whose speed drifts from minute to minute. Here
each process works for a fraction of a second, then the next one does. A waiting process is stopped (SIGSTOP), including
its background compiles, and its clock stands still. Linux only (/proc).
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Turn:
    """One process's view: its clock, and the point at which it hands over."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        """`seconds` is the least length of a turn."""
        self._connection, self._length, self._away = connection, seconds, 0.0
        self._clock = time.perf_counter
        self._turn_begun = self._clock()
        time.perf_counter = self.perf_counter  # for all code of this process, including code that measures itself

    def perf_counter(self) -> float:
        """A clock that stands still while other processes have their turns."""
        return self._clock() - self._away

    def border(self) -> None:
        """Call this where another process may run. Returns when it is this process's turn again."""
        now = self._clock()
        if now - self._turn_begun < self._length:
            return
        self._connection.send(None)
        self._connection.recv()
        self._turn_begun = self._clock()
        self._away += self._turn_begun - now


def take_turns(work: Callable[[Any, Turn], Any], specs: list[Any], seconds: float = 0.5) -> list[Any]:
    """Calls `work(spec, turn)` in a fresh process for each spec. Returns their results in the same order.

    Raises RuntimeError if a process dies.
    """
    context = multiprocessing.get_context("spawn")
    players = [_Player(context, work, spec, seconds) for spec in specs]
    with contextlib.ExitStack() as leaving:
        for player in players:
            leaving.callback(player.end)
        running = list(players)
        while running:
            running = [player for player in running if not player.plays()]
    return [player.result for player in players]


class _Player:
    """One process as `take_turns` sees it. Its first turn starts it."""

    def __init__(self, context: Any, work: Callable[[Any, Turn], Any], spec: Any, seconds: float) -> None:
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(target=_play, args=(work, spec, seconds, self._theirs))
        self._stopped: list[int] = []
        self.result: Any = None

    def plays(self) -> bool:
        """Runs one turn. Returns True when the work is done."""
        if self._process.pid is None:
            self._process.start()
            self._theirs.close()
        else:
            for pid in reversed(self._stopped):
                _signal(pid, signal.SIGCONT)
            self._connection.send(None)
        try:
            message = self._connection.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a process that took turns ended with status {self._process.exitcode}") from None
        if message is None:
            self._stopped = _stop_family(self._process.pid)
            return False
        (self.result,) = message
        self._process.join()
        return True

    def end(self) -> None:
        if self._process.pid is not None and self._process.is_alive():
            for pid in [*_stop_family(self._process.pid), *self._stopped]:
                _signal(pid, signal.SIGKILL)
            self._process.join()


def _play(work: Callable[[Any, Turn], Any], spec: Any, seconds: float, connection: Connection) -> None:
    connection.send((work(spec, Turn(connection, seconds)),))


def _stop_family(root: int) -> list[int]:
    """Stops a process and its descendants. Returns them, except processes that were stopped before."""
    stopped: list[int] = []
    while True:
        states = dict(_family(root))
        moving = [pid for pid, state in states.items() if state not in "TZX" and pid not in stopped]
        if not moving:
            return stopped
        for pid in moving:
            _signal(pid, signal.SIGSTOP)
        stopped += moving


def _family(root: int) -> Iterator[tuple[int, str]]:
    """(process id, state letter) of `root` and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            state, parent = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
            states[pid] = state
            children.setdefault(int(parent), []).append(pid)
    waiting = [root]
    while waiting:
        pid = waiting.pop(0)
        if pid in states:
            yield pid, states[pid]
        waiting += children.get(pid, [])


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
