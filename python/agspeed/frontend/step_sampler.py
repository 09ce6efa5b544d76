# SPDX-License-Identifier: Apache-2.0
"""Samples steps: most of them run without the clock and its hooks.

An observed step costs about ten microseconds, and about sixty while tuning. No step's time contains this cost, but it
would slow down a tiny model. So while the controller does not need steps, the session only counts forwards. The number
of steps is then exact for loops with a fixed number of forwards per step, and an estimate for others. The step after a
skip may have begun before the clock ran again. It is counted, but its time is not recorded.

Threads: the training thread. Forwards of other threads may shorten a skip and have no other effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from agspeed.frontend.history import History
from agspeed.frontend.plan_runner import PlanRunner
from agspeed.frontend.steps import StepClock
from agspeed.frontend.target import FunctionTarget, Target, UserCall
from agspeed.torch_compat.modes import reader

_LONGEST = 240
"""The most steps of one skip: the report's timeline gets a point at least this often."""
_TRUSTED = 16
"""Each recent observed step may represent this many unobserved steps."""


class StepSampler:
    """The sampler of one session. It observes every step until the first `skip`."""

    def __init__(self, clock: StepClock) -> None:
        self.forwards_left = 0
        """How many more forwards the session's entry lets pass before it calls `resume`."""
        self.is_skipping = False
        self._clock = clock
        self._is_first_step = False
        self._forwards = 0
        self._forwards_per_step, self._step_seconds = 1, 0.0
        self._begun = 0.0

    def entry(self, target: Target, runner: PlanRunner, run_seen: Callable[[object, object], object]) -> UserCall:
        """Returns the function that handles calls of a target after the decision. run_seen: runs the calls that the
        clock must time."""
        eager, is_grad_enabled, is_function = target.eager, torch.is_grad_enabled, isinstance(target, FunctionTarget)
        is_read = reader()

        def run_decided(*args: Any, **kwargs: Any) -> object:
            if not is_function and (not is_grad_enabled() or is_read()):
                return eager(*args, **kwargs)
            if self.forwards_left > 0:
                self.forwards_left -= 1
                return runner.current(*args, **kwargs)
            return run_seen(args, kwargs)

        return run_decided

    def skip(self, num_steps: int, forwards_per_step: int, history: History) -> None:
        """Skips the next `num_steps` steps at most. Requires: a step has just ended.

        Args:
            history: has the recent steps of the plan in force. The fewer there are, the shorter is the skip.
        """
        num_steps = min(num_steps, _TRUSTED * len(history.recent), _LONGEST)
        if num_steps > 0:
            self._forwards_per_step, self._step_seconds = forwards_per_step, history.typical_step_seconds()
            self._forwards = num_steps * forwards_per_step
            self.forwards_left, self.is_skipping = self._forwards, True
            self._begun = time.perf_counter()
            self._clock.stop()

    def interrupt(self) -> None:
        """Ends the skip before the next forward."""
        self._forwards -= self.forwards_left
        self.forwards_left = 0

    def resume(self) -> None:
        """Starts the clock again, from the next forward on."""
        self.forwards_left = 0
        if self.is_skipping:
            self.is_skipping, self._is_first_step = False, True
            self._clock.start()

    def end(self) -> None:
        """Ends skipping permanently; the clock stays as it is."""
        self.forwards_left, self.is_skipping, self._is_first_step = 0, False, False

    def is_first_step(self) -> bool:
        """Returns True once after each skip: the step that has just ended must not be recorded."""
        was, self._is_first_step = self._is_first_step, False
        return was

    def take_unseen(self) -> tuple[int, float]:
        """Returns (steps, seconds) that ran unobserved since the last call. Never more seconds than really passed."""
        passed = self._forwards - self.forwards_left
        steps = passed // self._forwards_per_step
        self._forwards -= steps * self._forwards_per_step
        begun, self._begun = self._begun, time.perf_counter()
        return steps, min(steps * self._step_seconds, self._begun - begun)
