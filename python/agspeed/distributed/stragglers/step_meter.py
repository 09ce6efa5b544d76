# SPDX-License-Identifier: Apache-2.0
"""StepMeter: measures a few consecutive steps of a DistributedDataParallel, and costs nothing in all other steps.

For these steps, the meter fills the wrapper's slot for calls (`torch_compat/modules.py`), has an optimizer hook of the
process, and asks the wrapper for its own times of each step. Those say when a step's last gradient was ready and when
its last reduction ended. A step ends when an optimizer has finished, and the next forward ends the input's time.

Threads: any thread may call `begin`. All the rest runs on the training thread, which is the one that made the meter.
"""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from agspeed.distributed.stragglers.windows import usual_mean
from agspeed.torch_compat import ddp, modules

_MOST_STEPS, _FEWEST_STEPS = 32, 4
_LONGEST_S = 1.0
"""A measurement ends after this time, if it has `_FEWEST_STEPS` steps."""
_MOST_FORWARDS = 1024
"""A measurement ends after this number of forwards, even if it has fewer steps."""
_NS = 1e-9


@dataclass
class MeasuredStep:
    """One step's times in seconds. `step_s` includes both others."""

    step_s: float
    input_s: float
    wait_s: float = 0.0

    @property
    def compute_s(self) -> float:
        return max(self.step_s - self.input_s - self.wait_s, 0.0)


@dataclass(frozen=True)
class Measured:
    """The usual times of one measurement's steps, in seconds per step; `step` counts the wrapper's steps so far."""

    step: int
    step_s: float
    input_s: float
    wait_s: float
    compute_s: float


class StepMeter:
    """Measures steps of one wrapper, which it does not keep alive. Make it on the training thread."""

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        self.is_done = threading.Event()
        """Set when a measurement has ended."""
        self.measured: Measured | None = None
        """The latest measurement's result; None if it saw no steps."""
        self._wrapper = weakref.ref(wrapper)
        self._thread = threading.get_ident()
        self._hook: RemovableHandle | None = None
        self._steps_before = self._iteration = 0
        self._forget()

    def begin(self) -> bool:
        """Begins a measurement with the next training forward. Returns False if the wrapper is gone or taken."""
        self.is_done.clear()
        self.measured = None
        wrapper = self._wrapper()
        if wrapper is None or modules.entry(wrapper) is not None:
            return False
        modules.set_entry(wrapper, self._call)
        return True

    def _forget(self) -> None:
        self._steps: list[MeasuredStep] = []
        self._owner: MeasuredStep | None = None  # the step of the forward whose wait is not known yet
        self._begun_at, self._num_forwards = 0.0, 0
        self._step_begun: float | None = None
        self._stepped_at: float | None = None

    # --- on the training thread ---------------------------------------------------------------------------------------

    def _call(self, *args: Any, **kwargs: Any) -> object:
        """Runs a call of the wrapper."""
        wrapper = self._wrapper()
        assert wrapper is not None  # it is being called
        call = modules.eager_call(wrapper)
        if not torch.is_grad_enabled() or threading.get_ident() != self._thread:
            return call(*args, **kwargs)
        self._forward_begins(wrapper, time.perf_counter())
        output = call(*args, **kwargs)
        if ddp.will_reduce(wrapper):
            self._find_wait(wrapper)
        return output

    def _forward_begins(self, wrapper: DistributedDataParallel, now: float) -> None:
        self._num_forwards += 1
        if self._num_forwards == 1:
            self._begun_at = now
            ddp.time_steps(wrapper, every=1)
            self._hook = register_optimizer_step_post_hook(torch.compiler.disable(self._optimizer_stepped))
        if self._stepped_at is None:
            return
        begun, self._step_begun, self._stepped_at = self._step_begun, self._stepped_at, None
        if begun is not None:
            self._steps[-1].step_s = self._step_begun - begun
        self._steps.append(MeasuredStep(0.0, now - self._step_begun))

    def _optimizer_stepped(self, *_: object) -> None:
        if threading.get_ident() == self._thread:
            self._stepped_at = time.perf_counter()

    def _find_wait(self, wrapper: DistributedDataParallel) -> None:
        """Adds the wait of the backward before this forward to its step. Ends the measurement if it is complete."""
        times = ddp.reduction_times(wrapper)
        if times is not None and times.iteration != self._iteration:
            if times.iteration < self._iteration:  # the wrapper has a new reducer, which counts anew
                self._steps_before += self._iteration
            self._iteration = times.iteration
            if self._owner is not None:
                self._owner.wait_s += max(times.reduced_ns - times.computed_ns, 0) * _NS
        self._owner = self._steps[-1] if self._steps else None
        num_complete = len(self._steps) - 1
        is_late = time.perf_counter() - self._begun_at > _LONGEST_S and num_complete >= _FEWEST_STEPS
        if num_complete >= _MOST_STEPS or is_late or self._num_forwards >= _MOST_FORWARDS:
            self._end(wrapper, self._steps[:-1])

    def _end(self, wrapper: DistributedDataParallel, steps: list[MeasuredStep]) -> None:
        if modules.entry(wrapper) == self._call:
            modules.drop_entry(wrapper)
        ddp.time_steps(wrapper, every=ddp.USUAL_TIMED_STEPS)
        if self._hook is not None:
            self._hook.remove()
        if len(steps) >= _FEWEST_STEPS:
            self.measured = Measured(
                self._steps_before + self._iteration,
                usual_mean(step.step_s for step in steps),
                usual_mean(step.input_s for step in steps),
                usual_mean(step.wait_s for step in steps),
                usual_mean(step.compute_s for step in steps),
            )
        self._forget()
        self.is_done.set()
