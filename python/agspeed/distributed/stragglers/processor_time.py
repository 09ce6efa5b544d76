# SPDX-License-Identifier: Apache-2.0
"""The processor time that this process asked for and did not get, because others used the processors.

The kernel counts for each thread how long it ran, and how long it was ready to run and had to wait. A virtual machine
also counts the time in which its host ran something else ("steal"). Threads: one at a time.
"""

from __future__ import annotations

from pathlib import Path

_TASKS, _STAT = Path("/proc/self/task"), Path("/proc/stat")
_STEAL = 7
"""The index of steal among the times of a processor in /proc/stat; user time is 0."""


class ProcessorTime:
    """Measures from one call of `starved` to the next."""

    def __init__(self) -> None:
        self._threads = _threads()
        self._machine = _machine()

    def starved(self) -> float:
        """Returns the share of the wanted processor time that was missing since the last call; 0 if it is not known."""
        before, self._threads = self._threads, _threads()
        ran = waited = 0
        for thread, (now_ran, now_waited) in self._threads.items():
            old_ran, old_waited = before.get(thread, (0, 0))
            ran, waited = ran + max(now_ran - old_ran, 0), waited + max(now_waited - old_waited, 0)
        (old_stolen, old_all), self._machine = self._machine, _machine()
        stolen, of_all = self._machine[0] - old_stolen, self._machine[1] - old_all
        missing = (waited / (ran + waited) if ran + waited else 0.0) + (max(stolen, 0) / of_all if of_all > 0 else 0.0)
        return min(missing, 1.0)


def _threads() -> dict[str, tuple[int, int]]:
    """Returns {thread: (nanoseconds that it ran, nanoseconds that it waited for a processor)}."""
    found = {}
    try:
        for task in _TASKS.iterdir():
            try:
                ran, waited, *_ = (task / "schedstat").read_text().split()
                found[task.name] = int(ran), int(waited)
            except (OSError, ValueError):  # the thread has ended, or the kernel does not count
                continue
    except OSError:
        return {}
    return found


def _machine() -> tuple[int, int]:
    """Returns the processors' stolen time and all of their busy time, in the kernel's ticks."""
    try:
        times = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return 0, 0
    user, nice, system, _idle, _io, irq, soft, *_ = times[:_STEAL] if len(times) > _STEAL else [0] * _STEAL
    stolen = times[_STEAL] if len(times) > _STEAL else 0
    return stolen, user + nice + system + irq + soft + stolen
