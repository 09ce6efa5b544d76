# SPDX-License-Identifier: Apache-2.0
"""StepTimer and LateSteps: time training steps on a device that computes asynchronously.

An event is recorded on the current stream at each border of a step, forward or optimizer step. A pair of events on one
stream measures the device's time if the device lags behind the host, and the host's time otherwise. Both are the real
cost of the step. Events are read after they are done, without waiting, so the time of a step is known some steps later.
At most `MAX_PENDING` steps are open at once. While that many are open, and while the stream is being captured into a
graph, steps are not timed. Events are reused. An unused timer costs nothing.

Threads: the training thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

MAX_PENDING = 8
"""The most steps whose times are not known yet."""
_MAX_FORWARDS = 8
"""The most forwards of one step that are timed individually; further ones count as the rest of the step."""


class Event(Protocol):
    """A point in a stream's work, like torch.Event."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Event, /) -> float: ...


class EventSource(Protocol):
    """A source of events: an `Accelerator`, or a fake in tests."""

    def event(self) -> Event: ...
    def is_capturing(self) -> bool: ...


class DeviceTimes(NamedTuple):
    """One step on the device, in seconds. `busy` includes the others, which are 0 if not measured."""

    busy: float
    forward: float
    optimizer: float


@dataclass
class TimedStep:
    """The events of one step, and its times once it is done."""

    begin: Event
    end: Event | None = None
    forwards: list[Event] = field(default_factory=list)
    """Begin and end of each forward, alternating."""
    optimizer: Event | None = None

    def is_done(self) -> bool:
        return self.end is not None and self.end.query()

    def wait(self) -> None:
        assert self.end is not None
        self.end.synchronize()

    def times(self) -> DeviceTimes:
        """Returns the step's times. Requires: is_done()."""
        assert self.end is not None
        pairs = zip(self.forwards[::2], self.forwards[1::2], strict=False)
        forward = sum(begin.elapsed_time(end) for begin, end in pairs)
        optimizer = self.optimizer.elapsed_time(self.end) if self.optimizer is not None else 0.0
        return DeviceTimes(1e-3 * self.begin.elapsed_time(self.end), 1e-3 * forward, 1e-3 * optimizer)

    def events(self) -> list[Event]:
        found = [self.begin, self.end, self.optimizer, *self.forwards]
        return [event for event in found if event is not None]


class StepTimer:
    """The timer of one session whose target trains on a device."""

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._open: TimedStep | None = None
        self._spare: deque[Event] = deque()
        self._num_pending = 0
        self.on_forward_end: Callable[[], None] = _nothing
        """Called at the end of each timed forward."""

    def step_begins(self) -> None:
        self.forget()
        if self._num_pending < MAX_PENDING and not self._source.is_capturing():
            self._open = TimedStep(self._record())

    def forward_begins(self) -> None:
        if self._open is not None and len(self._open.forwards) < 2 * _MAX_FORWARDS:
            self._drop_odd(self._open)
            self._open.forwards.append(self._record())

    def forward_ends(self) -> None:
        if self._open is not None and len(self._open.forwards) % 2 == 1:
            self._open.forwards.append(self._record())
            self.on_forward_end()

    def optimizer_begins(self) -> None:
        if self._open is not None and self._open.optimizer is None:
            self._open.optimizer = self._record()

    def step_ends(self) -> TimedStep | None:
        """Ends the step that began last. Returns the step, which the caller must `release` after reading it; None if
        the step is not timed."""
        step, self._open = self._open, None
        if step is None:
            return None
        if self._source.is_capturing():
            self._spare.extend(step.events())
            return None
        step.end = self._record()
        self._drop_odd(step)
        self._num_pending += 1
        return step

    def release(self, step: TimedStep) -> None:
        """Returns the events of `step` for reuse. Call it when the step has been read or is not needed."""
        self._num_pending -= 1
        self._spare.extend(step.events())

    def forget(self) -> None:
        """Drops the open step without timing it."""
        if self._open is not None:
            self._spare.extend(self._open.events())
            self._open = None

    def _record(self) -> Event:
        event = self._spare.popleft() if self._spare else self._source.event()
        event.record()
        return event

    def _drop_odd(self, step: TimedStep) -> None:
        """Drops the begin event of a forward that has no end because it raised."""
        if len(step.forwards) % 2 == 1:
            self._spare.append(step.forwards.pop())


def _nothing() -> None:
    """The default of `on_forward_end`."""


StepT = TypeVar("StepT")


class LateSteps(Generic[StepT]):
    """A queue of steps whose times are not known yet, each with its owner's record.

    Steps leave in the order in which they ran, after their events are done. Only `drain` waits.
    """

    def __init__(self, timer: StepTimer) -> None:
        self.timer = timer
        self._pending: deque[tuple[TimedStep, StepT]] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, step: StepT) -> bool:
        """Adds the step that has just ended. Returns False if it is not timed."""
        timed = self.timer.step_ends()
        if timed is not None:
            self._pending.append((timed, step))
        return timed is not None

    def finished(self) -> Iterator[tuple[StepT, DeviceTimes]]:
        """Removes and yields the steps whose times are known by now."""
        while self._pending and self._pending[0][0].is_done():
            timed, step = self._pending.popleft()
            times = timed.times()
            self.timer.release(timed)
            yield step, times

    def drain(self) -> Iterator[tuple[StepT, DeviceTimes]]:
        """Waits for all steps, then removes and yields them."""
        if self._pending:
            self._pending[-1][0].wait()
        yield from self.finished()
