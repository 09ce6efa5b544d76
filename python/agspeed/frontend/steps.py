# SPDX-License-Identifier: Apache-2.0
"""Finds and times the training steps of one model.

A step begins at the model's first forward after the previous step ended. It ends when an optimizer that holds one of
the model's parameters finishes ``step()`` (a process-wide hook of torch.optim). Loops without such an optimizer are
measured from forward to forward. The time between the end of a step and the next forward is the input wait and is
recorded separately. Inside a step, the clock records the times of the target's forwards and of the optimizer
separately. Its times are the host's. For steps on a GPU it also reports each border to a `StepTimer`.

One process-wide pair of hooks serves all clocks and is removed when no clock runs. A clock rests while only other
models train, so that models that no longer train cost nothing. Threads: a clock observes the thread that started it
and ignores all others.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from agspeed.devices.clock import StepTimer

_FORWARDS_WITHOUT_OPTIMIZER = 3
"""After this many forwards without any optimizer step, a loop counts as one without an optimizer."""

_MOST_FOREIGN_STEPS = 16
"""A clock rests after this many consecutive steps of other models' optimizers."""


class StepTimes(NamedTuple):
    """One finished step, in seconds. `busy` includes `forward` and `optimizer`, which are 0 if not measured."""

    busy: float
    input_wait: float
    forward: float = 0.0
    optimizer: float = 0.0
    forwards: int = 1
    """The number of the model's forwards in the step."""


class StepClock:
    """Calls `on_end(times)` after each training step of a model.

    Args:
        parameters: returns the model's current parameters (they may change during training).
        on_end: called on the training thread, inside ``optimizer.step()`` or at the next forward.
    """

    def __init__(self, parameters: Callable[[], Iterable[torch.Tensor]], on_end: Callable[[StepTimes], None]) -> None:
        self._parameters = parameters
        self._on_end = on_end
        self._thread = threading.get_ident()
        self._ours: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        self._begin: float | None = None
        self._end: float | None = None
        self._wait = 0.0
        self._forward = 0.0
        self._forward_begin = 0.0
        self._optimizer_begin: float | None = None
        self._forwards_since_step = 0
        self._has_optimizer = True
        self._foreign_steps, self._is_resting = 0, False
        self.timer: StepTimer | None = None
        """Gets the same borders, to time the work on a GPU, which the host's clock cannot see. None on the CPU."""
        self.foreign_optimizer: str | None = None
        """The class of the last optimizer that stepped after a forward of the model and holds none of its parameters.
        """

    @property
    def has_own_optimizer(self) -> bool:
        """Whether an optimizer of the model has stepped and still exists."""
        return bool(self._ours)

    @property
    def is_resting(self) -> bool:
        """Whether only other models train at present."""
        return self._is_resting

    def is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def forward_begins(self) -> None:
        """Call this before each training forward of the model. Calls from other threads are ignored."""
        if not self.is_own_thread():
            return
        if self._is_resting:
            self.start()
        self._foreign_steps = 0
        if self._begin is not None:
            self._forwards_since_step += 1
            if self._has_optimizer and self._forwards_since_step >= _FORWARDS_WITHOUT_OPTIMIZER and not self._ours:
                self._has_optimizer = False
            if not self._has_optimizer:
                self._finish(time.perf_counter())
        if self._begin is None:
            self._begin = time.perf_counter()
            self._wait = self._begin - self._end if self._end is not None else 0.0
            self._forward = 0.0
            if self.timer is not None:
                self.timer.step_begins()
        if self.timer is not None:
            self.timer.forward_begins()
        self._forward_begin = time.perf_counter()

    def forward_ends(self) -> None:
        """Call this after a forward has returned, unless the forward is the whole step."""
        if self._begin is not None and self.is_own_thread():
            self._forward += time.perf_counter() - self._forward_begin
            if self.timer is not None:
                self.timer.forward_ends()

    def restart(self) -> float:
        """Restarts the running step now. Returns: the seconds since its first beginning, which do not count."""
        now = time.perf_counter()
        before = now - self._begin if self._begin is not None else 0.0
        self._begin = self._forward_begin = now
        if self.timer is not None:
            self.timer.step_begins()
            self.timer.forward_begins()
        return before

    def leave_out(self, seconds: float) -> None:
        """Call this if something took `seconds` just now, within a step or not, that is no part of the training."""
        if self.is_own_thread():
            for name in ("_begin", "_end", "_optimizer_begin"):
                if (moment := getattr(self, name)) is not None:
                    setattr(self, name, moment + seconds)

    def function_ends(self) -> None:
        """Call this when a step function returns: its call is the whole step."""
        if self._begin is not None and self.is_own_thread():
            self._finish(time.perf_counter())

    def start(self) -> None:
        self._is_resting = False
        _clocks.add(self)

    def stop(self) -> None:
        self._is_resting = False
        _clocks.remove(self)
        self._begin = self._end = None
        if self.timer is not None:
            self.timer.forget()

    def optimizer_begins(self) -> None:
        """Called by the process-wide hook before every optimizer step of the process."""
        if self._begin is not None and self.is_own_thread():
            self._optimizer_begin = time.perf_counter()
            if self.timer is not None:
                self.timer.optimizer_begins()

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Called by the process-wide hook after every optimizer step of the process."""
        if not self.is_own_thread():
            return
        if self._begin is None:
            self._end = None  # another model trained, or this one while paused: the gap is not an input wait
            self._foreign_steps += 1
            if self._foreign_steps >= _MOST_FOREIGN_STEPS:
                self.stop()
                self._is_resting = True
            return
        ours = self._ours.get(optimizer)
        if not ours:  # check again while it is False: parameter groups may be added later
            ours = self._holds_ours(optimizer)
            if ours:
                self._ours[optimizer] = True
        if not ours:
            self.foreign_optimizer = type(optimizer).__name__
        else:
            self._has_optimizer = True
            self._finish(time.perf_counter())

    def _finish(self, now: float) -> None:
        assert self._begin is not None
        optimizer = now - self._optimizer_begin if self._optimizer_begin is not None else 0.0
        times = StepTimes(now - self._begin, self._wait, self._forward, optimizer, 1 + self._forwards_since_step)
        self._begin, self._optimizer_begin, self._forwards_since_step = None, None, 0
        self._end = now
        self._on_end(times)
        self._end = time.perf_counter()

    def _holds_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        ids = {id(parameter) for parameter in self._parameters()}
        return any(id(parameter) in ids for group in optimizer.param_groups for parameter in group["params"])


class _Clocks:
    """The running clocks, held weakly, and the pair of hooks that serves them."""

    def __init__(self) -> None:
        self._running: weakref.WeakSet[StepClock] = weakref.WeakSet()
        self._before: list[RemovableHandle] = []
        self._after: list[RemovableHandle] = []

    def add(self, clock: StepClock) -> None:
        self._running.add(clock)
        if not self._before:
            self._before = [register_optimizer_step_pre_hook(torch.compiler.disable(self._before_step))]
        if not self._after:
            self._after = [register_optimizer_step_post_hook(torch.compiler.disable(self._after_step))]

    def remove(self, clock: StepClock) -> None:
        self._running.discard(clock)
        self._unhook_if_idle()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for clock in list(self._running):
            clock.optimizer_begins()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for clock in list(self._running):
            clock.optimizer_stepped(optimizer)
        self._unhook_if_idle()

    def leave_out(self, seconds: float) -> None:
        for clock in list(self._running):
            clock.leave_out(seconds)

    def _unhook_if_idle(self) -> None:
        if not self._running:
            self._before, self._after = removed(self._before), removed(self._after)


def leave_out(seconds: float) -> None:
    """Takes `seconds` that have just passed out of the running step of each clock of this thread."""
    _clocks.leave_out(seconds)


def removed(hooks: list[RemovableHandle]) -> list[RemovableHandle]:
    """Removes `hooks`, even while torch iterates over the hooks. Returns the hooks that must stay for now.

    Removing any entry but the last would break torch's loop ("OrderedDict mutated during iteration"). So a hook stays
    if another one was registered after it.
    """
    left = []
    for hook in hooks:
        registered = hook.hooks_dict_ref()
        if registered is not None and next(reversed(registered), hook.id) == hook.id:
            hook.remove()
        elif registered is not None:
            left.append(hook)
    return left


_clocks = _Clocks()
