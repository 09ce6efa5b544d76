# SPDX-License-Identifier: Apache-2.0
"""Shares one memory meter among all sessions of the process, because c10 has a single reporting hook.

Each session resets the peak at the end of its own steps. If two models train in the same step, their peaks overlap, and
each session sees an upper bound.
"""

from __future__ import annotations

import weakref
from typing import Any

from agspeed import native


class SharedMeter:
    """Counts live bytes while at least one session uses it. Training threads only; the GIL is the only lock."""

    def __init__(self) -> None:
        self._meter: Any = None
        self._users: set[int] = set()

    def acquire(self, user: object) -> None:
        module = native.load()
        if module is None:
            return
        if self._meter is None:
            self._meter = module.MemoryMeter()
        if not self._users:
            self._meter.start()
        if id(user) not in self._users:
            self._users.add(id(user))
            weakref.finalize(user, self._release, id(user)).atexit = False

    def release(self, user: object) -> None:
        """Ends the use by `user`. Python also calls this when `user` is freed."""
        self._release(id(user))

    def _release(self, identity: int) -> None:
        self._users.discard(identity)
        if not self._users and self._meter is not None and self._meter.is_running:
            self._meter.stop()

    def take_peak(self, user: object) -> int:
        """Returns the peak of live bytes since the last call; 0 if `user` does not use the meter. Resets the peak."""
        if id(user) not in self._users:
            return 0
        peak = int(self._meter.peak_bytes())
        self._meter.reset_peak()
        return peak


METER = SharedMeter()
