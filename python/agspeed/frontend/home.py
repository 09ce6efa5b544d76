# SPDX-License-Identifier: Apache-2.0
"""Home: the device context of a session, with the times of its steps there.

The device is that of the target's own tensors, or of the first call's tensors if the target has none. A model may move
until tuning begins. After that, a tensor on another device makes it run eagerly (`agspeed.devices.placement`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from agspeed.devices import placement
from agspeed.devices.accelerator import Accelerator, accelerator_of
from agspeed.devices.clock import MAX_PENDING, DeviceTimes, LateSteps, StepTimer
from agspeed.devices.meter import DeviceMeter
from agspeed.devices.placement import CPU
from agspeed.frontend.steps import StepClock, StepTimes
from agspeed.frontend.target import FunctionTarget, Target
from agspeed.tuning.company import num_ranks
from agspeed.tuning.driver import RanStep

if TYPE_CHECKING:
    from agspeed.distributed.wrapper import Wrapper


class EndedStep(NamedTuple):
    """A step at its end. plan: the plan that ran it. ran: the controller's record. times: the host's times, until the
    device's are known."""

    plan: str
    times: StepTimes
    shape: str
    ran: RanStep | None


class Home:
    """The device context of one session, on its training thread."""

    def __init__(self, target: Target, clock: StepClock) -> None:
        self._target, self._clock = target, clock
        self.device = CPU
        self._may_move = True
        self.meter: DeviceMeter | None = None
        """Measures the device's memory; None on the CPU."""
        self.accelerator: Accelerator | None = None
        self.late: LateSteps[EndedStep] | None = None
        """Steps whose times are not known yet; None on the CPU, which knows them at once."""
        self._move(placement.home_of(target.tensors()))

    def why_eager(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> str | None:
        """Returns why the session runs eagerly with `tensors`, or None."""
        reason = placement.naming(placement.why_eager(tensors(), self.device), getattr(self._target, "module", None))
        if reason is None or not self._may_move:
            return reason
        home = placement.home_of(tensors())
        own = placement.home_of(self._target.tensors())
        if home == self.device or (own != home and any(True for _ in self._target.tensors())):
            return reason
        self._move(home)
        return placement.why_eager(tensors(), self.device)

    def why_not_wrapped(self, wrapper: Wrapper | None) -> str | None:
        """Returns why a target inside `wrapper`, or one that other ranks train too, stays eager, or None."""
        if isinstance(self._target, FunctionTarget) and (ranks := num_ranks()) > 1:
            return (
                f"{ranks} ranks train, and a step function also computes values that must have the same bits at all "
                "of them, such as the optimizer's step: hand the module to agspeed.optimize instead"
            )
        if wrapper is None or self.late is None:
            return None
        return f"{wrapper.kind} reduces its gradients, and on a GPU only a model that trains alone is tuned yet"

    @property
    def max_late(self) -> int:
        """How many more steps may run before the time of a step is known."""
        return MAX_PENDING if self.late is not None else 0

    def is_capturing(self) -> bool:
        """Returns whether the user is capturing the stream into a CUDA graph. Nothing is timed or tuned meanwhile."""
        return self.accelerator is not None and self.accelerator.is_capturing()

    def known_steps(self, step: EndedStep, skip: Callable[[int, float], None]) -> Sequence[EndedStep]:
        """Adds `step`, which has just ended, and returns the steps whose times are known by now, in order. On the CPU
        that is `step` itself.

        If `step` was disturbed (for example by a capture), it gets the host's time, after waiting for the device.
        skip: called with (1, the host's seconds) if `step` is not timed.
        """
        if self.late is None:
            return (step,)
        if step.ran is not None and step.ran.is_disturbed:
            self.late.timer.forget()
            return [*self._with_times(self.late.drain()), step]
        if not self.late.add(step):
            skip(1, step.times.busy)
        return [*self._with_times(self.late.finished())]

    def settle_down(self) -> Sequence[EndedStep]:
        """Fixes the session's device, as tuning begins. Waits for steps whose times are not known and returns them."""
        self._may_move = False
        return [*self._with_times(self.late.drain())] if self.late is not None else ()

    def _with_times(self, steps: Iterable[tuple[EndedStep, DeviceTimes]]) -> Iterator[EndedStep]:
        for step, device in steps:
            times = step.times._replace(busy=device.busy, forward=device.forward, optimizer=device.optimizer)
            yield step._replace(times=times)

    def _move(self, device: torch.device) -> None:
        if device.type in placement.TIMED_DEVICES and device != self.device:
            self.device, self.accelerator = device, accelerator_of(device)
            self.late = LateSteps(StepTimer(self.accelerator)) if self.accelerator is not None else None
            self.meter = DeviceMeter(self.accelerator) if self.accelerator is not None else None
            self._clock.timer = self.late.timer if self.late is not None else None
            if self.late is not None and self.meter is not None:
                self.late.timer.on_forward_end = self.meter.sample
