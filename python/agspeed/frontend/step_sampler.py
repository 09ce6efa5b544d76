# SPDX-License-Identifier: Apache-2.0
"""Samples steps: most of them run without the clock and the hooks it needs.

A watched step costs some ten microseconds, some sixty while tuning, which a tiny model would feel and which no step's
time contains. So while the controller has no use for steps, forwards are only counted; that is exact for loops with a
fixed number of forwards per step and an estimate for others. The step after a skip may have begun before the clock ran
again, and the wait before it was not seen: it is counted, its time is not recorded.

Threads: the training thread. Forwards of other threads may shorten a skip, nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from agspeed.frontend.history import History
from agspeed.frontend.plan_runner import PlanRunner
from agspeed.frontend.steps import StepClock
from agspeed.frontend.target import FunctionTarget, Target
from agspeed.torch_compat.modes import reader

_LONGEST = 240
"""Steps of one skip: the report's timeline gets points at least that often."""
_TRUSTED = 16
"""Steps that each recent one may stand for unseen."""


class StepSampler:
    """One per session; sees every step until the first `skip`."""

    def __init__(self, clock: StepClock) -> None:
        self.forwards_left = 0
        """Forwards that the session's entry lets pass, counting down, before it calls `resume`."""
        self.is_skipping = False
        self._clock = clock
        self._is_first_step = False
        self._forwards = 0
        self._forwards_per_step, self._step_seconds = 1, 0.0
        self._begun = 0.0

    def entry(self, target: Target, runner: PlanRunner, run_seen: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        """The function that calls of a target go to after the decision. run_seen: takes the calls that the clock is to
        see."""
        eager, is_grad_enabled, is_function = target.eager, torch.is_grad_enabled, isinstance(target, FunctionTarget)
        is_read = reader()

        def run_decided(*args: Any, **kwargs: Any) -> Any:
            if not is_function and (not is_grad_enabled() or is_read()):
                return eager(*args, **kwargs)
            if self.forwards_left > 0:
                self.forwards_left -= 1
                return runner.current(*args, **kwargs)
            return run_seen(args, kwargs)

        return run_decided

    def skip(self, num_steps: int, forwards_per_step: int, history: History) -> None:
        """The next `num_steps` steps need not be seen. Requires: a step has just ended.

        Args:
            history: has seen steps with the plan in force, few of which stand for few of those to come.
        """
        num_steps = min(num_steps, _TRUSTED * len(history.recent), _LONGEST)
        if num_steps > 0:
            self._forwards_per_step, self._step_seconds = forwards_per_step, history.typical_step_seconds()
            self._forwards = num_steps * forwards_per_step
            self.forwards_left, self.is_skipping = self._forwards, True
            self._begun = time.perf_counter()
            self._clock.stop()

    def interrupt(self) -> None:
        """The next forward is to be seen."""
        self._forwards -= self.forwards_left
        self.forwards_left = 0

    def resume(self) -> None:
        """The clock runs again from the next forward on."""
        self.forwards_left = 0
        if self.is_skipping:
            self.is_skipping, self._is_first_step = False, True
            self._clock.start()

    def end(self) -> None:
        """Nothing is skipped any more; the clock stays as it is."""
        self.forwards_left, self.is_skipping, self._is_first_step = 0, False, False

    def is_first_step(self) -> bool:
        """True once after each skip: the step that has just ended is not to be recorded."""
        was, self._is_first_step = self._is_first_step, False
        return was

    def take_unseen(self) -> tuple[int, float]:
        """(steps, seconds) that passed unseen since this was last asked. Never more seconds than really passed."""
        passed = self._forwards - self.forwards_left
        steps = passed // self._forwards_per_step
        self._forwards -= steps * self._forwards_per_step
        begun, self._begun = self._begun, time.perf_counter()
        return steps, min(steps * self._step_seconds, self._begun - begun)
