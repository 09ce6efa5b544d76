# SPDX-License-Identifier: Apache-2.0
"""Drives the generators of codecs: several buckets are in flight, and all ranks resume them in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agspeed.distributed.codecs.codec import Pending, Steps

__all__ = ["Run", "advance", "finish"]


class Run:
    """A codec's steps for one bucket. The first one starts at once. `done` is called after the last one."""

    def __init__(self, steps: Steps, done: Callable[[], None]) -> None:
        self._steps, self._done = steps, done
        self._pending: Pending | None = None
        self._resume(lambda: next(steps))

    @property
    def is_done(self) -> bool:
        return self._pending is None

    def advance(self) -> None:
        """Waits for the collective in flight, and starts the next one. Raises the errors of codec and transport."""
        if (pending := self._pending) is not None:
            result = pending()
            self._resume(lambda: self._steps.send(result))

    def _resume(self, resume: Callable[[], Pending]) -> None:
        try:
            self._pending = resume()
        except StopIteration:
            self._pending = None
            self._done()


def advance(runs: Iterable[Run]) -> list[Run]:
    """Advances each run once, in order. Returns the ones that are not done."""
    left = []
    for run in runs:
        run.advance()
        if not run.is_done:
            left.append(run)
    return left


def finish(runs: Iterable[Run]) -> None:
    """Advances the runs in turns until all are done."""
    left = list(runs)
    while left:
        left = advance(left)
