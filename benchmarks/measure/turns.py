# SPDX-License-Identifier: Apache-2.0
"""Processes that take turns: one runs, the others stand still with all their children, so that all see one machine.

Runs of a minute each, one after another, cannot be compared on a machine whose speed drifts from minute to minute.
Here each process works for a fraction of a second, then the next one; whoever waits is stopped (SIGSTOP), compiles in
its background included, and its clock stands still. Linux only (/proc).
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
    """The side of one process: its clock, and where it hands over."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        """seconds: how long a turn lasts at least."""
        self._connection, self._length, self._away = connection, seconds, 0.0
        self._clock = time.perf_counter
        self._turn_begun = self._clock()
        time.perf_counter = self.perf_counter  # for all code of this process, also what it measures about itself

    def perf_counter(self) -> float:
        """Stands still while others have their turns."""
        return self._clock() - self._away

    def border(self) -> None:
        """To be called where another process may go on; returns when it is this one's turn again."""
        now = self._clock()
        if now - self._turn_begun < self._length:
            return
        self._connection.send(None)
        self._connection.recv()
        self._turn_begun = self._clock()
        self._away += self._turn_begun - now


def take_turns(work: Callable[[Any, Turn], Any], specs: list[Any], seconds: float = 0.5) -> list[Any]:
    """Calls `work(spec, turn)` in a fresh process per spec and returns what the calls return, in the same order.

    Raises: RuntimeError when a process dies.
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
    """One process as the conductor sees it; it is started by its first turn."""

    def __init__(self, context: Any, work: Callable[[Any, Turn], Any], spec: Any, seconds: float) -> None:
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(target=_play, args=(work, spec, seconds, self._theirs))
        self._stopped: list[int] = []
        self.result: Any = None

    def plays(self) -> bool:
        """One turn. Returns True when the work is done."""
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
    """Stops a process and its descendants; those that stood still before are not in the list."""
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
