# SPDX-License-Identifier: Apache-2.0
"""Where a training step begins and ends, for one model.

A step begins at the model's first forward after the previous step ended. It ends when an optimizer that holds one of
the model's parameters finishes ``step()`` (a process-wide hook of torch.optim). Loops without such an optimizer are
measured from forward to forward. The time between the end of a step and the next forward is input wait and is kept
apart. Inside a step the clock keeps the time of the target's forwards and of the optimizer apart. Its times are the
host's; for steps on a device it tells the borders to a `StepTimer` as well.

One process-wide pair of hooks serves all clocks; it is removed when no clock is running. A clock rests while others
train and its own model does not, so that models of the past cost those of the present nothing. Threads: a clock listens
to the thread that started it and ignores all others.
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
"""Forwards without any optimizer step after which a loop counts as one without optimizer."""

_PATIENCE = 16
"""Steps of other models' optimizers in a row after which a clock rests."""


class StepTimes(NamedTuple):
    """One finished step, in seconds. `busy` includes `forward` and `optimizer`, each 0 where it was not seen."""

    busy: float
    input_wait: float
    forward: float = 0.0
    optimizer: float = 0.0
    forwards: int = 1
    """How many forwards of the model the step had."""


class StepClock:
    """Calls `on_end(times)` after each training step of a model.

    Args:
        parameters: returns the model's parameters now (they may change while training).
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
        """Told of the same borders where the host's clock does not see the work: on a device."""
        self.foreign_optimizer: str | None = None
        """Class of the last optimizer that stepped after a forward of the model and holds none of its parameters."""

    @property
    def has_own_optimizer(self) -> bool:
        """An optimizer of the model has stepped and still exists."""
        return bool(self._ours)

    def is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def forward_begins(self) -> None:
        """To be called before each training forward of the model; other threads than the clock's are ignored."""
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
        """To be called after a forward that returned, where the forward is not the whole step."""
        if self._begin is not None and self.is_own_thread():
            self._forward += time.perf_counter() - self._forward_begin
            if self.timer is not None:
                self.timer.forward_ends()

    def restart(self) -> float:
        """The running step begins now. Returns: the seconds before, which do not count."""
        now = time.perf_counter()
        before = now - self._begin if self._begin is not None else 0.0
        self._begin = self._forward_begin = now
        if self.timer is not None:
            self.timer.step_begins()
            self.timer.forward_begins()
        return before

    def function_ends(self) -> None:
        """To be called when a step function returns: its call is the step."""
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
            self._end = None  # others trained since, or ours while paused: the gap is not a wait for input
            self._foreign_steps += 1
            if self._foreign_steps >= _PATIENCE:
                self.stop()
                self._is_resting = True
            return
        ours = self._ours.get(optimizer)
        if not ours:  # asked again while false: parameter groups may be added later
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
        self._hooks: list[RemovableHandle] = []

    def add(self, clock: StepClock) -> None:
        self._running.add(clock)
        if not self._hooks:
            before, after = torch.compiler.disable(self._before_step), torch.compiler.disable(self._after_step)  # type: ignore[no-untyped-call]
            self._hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

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

    def _unhook_if_idle(self) -> None:
        if not self._running:
            self._hooks = removed(self._hooks)


def removed(hooks: list[RemovableHandle]) -> list[RemovableHandle]:
    """Removes `hooks`, also while torch walks through the hooks it calls. Returns those that have to stay for now.

    Removing anything but the last entry would break torch's loop ("OrderedDict mutated during iteration"), so a hook
    stays where somebody has registered another one after it.
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
