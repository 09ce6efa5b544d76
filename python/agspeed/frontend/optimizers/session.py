# SPDX-License-Identifier: Apache-2.0
"""Tunes the step of one optimizer: uses torch's fused kernels if they are correct and faster.

torch has a single-pass kernel for SGD, Adam, AdamW and Adagrad that runs at memory speed, but uses it only on request.
An `OptimizerSession` tries it. The gate compares both implementations after a step, with the same parameters, gradients
and state. A separate tuner then times ``optimizer.step()`` alone in paired blocks.

Only the flags ``fused`` and ``foreach`` of the parameter groups change, and only while a fused step runs. Between two
steps the groups, and so ``state_dict``, are as the script made them. The optimizer's state keeps its format, so a
switch is safe between any two steps. `fitness.py` says at which steps the plain step runs in any case.

The fused step rounds differently from the plain one. If several ranks train, each would switch at different steps, and
parameters that are equal at all ranks would diverge. So the plain step runs from the first step that finds other ranks.

Threads: an `OptimizerSession` belongs to the thread that makes it. Steps on other threads are plain.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from agspeed import native
from agspeed.config import Settings
from agspeed.devices.placement import why_eager
from agspeed.frontend import startup
from agspeed.frontend.optimizers.check import check_fused
from agspeed.frontend.optimizers.fitness import UNPROVEN, Fitness, kinds_of, trained, why_never, why_plain, why_unfit
from agspeed.frontend.steps import removed
from agspeed.log import logger
from agspeed.regions.outcome import described
from agspeed.regions.plan import EAGER
from agspeed.regions.state import State
from agspeed.reporting.parts import Json
from agspeed.torch_compat.modes import is_watched
from agspeed.tuning.driver import FOREVER, TunerDriver

if TYPE_CHECKING:
    from agspeed._native import TunerAction, TunerConfig, TunerSnapshot
    from agspeed.tuning.gate import check as gate

FUSED = "fused"
_CHECK_S = 0.1
"""The expected time of the gate. In mode="auto" the optimizer's steps must earn it."""
_SHARE = 0.1
"""The most that tuning may cost in mode="auto", as a share of the time of the optimizer's steps."""
_MOST_PROOFS = 8
"""The gate checks an optimizer at most this number of times: once, and again for new kinds of parameters or options."""
_MOST_TRIES = 16
"""The check is given up after this many steps at which it is impossible."""
_sessions: weakref.WeakKeyDictionary[torch.optim.Optimizer, OptimizerSession] = weakref.WeakKeyDictionary()
_is_paused = False


class OptimizerSession:
    """Tunes one optimizer through its own step hooks.

    Args:
        is_busy: returns whether the times of steps are being compared for another purpose. The form of the step then
            stays as it is, so that it does not disturb the comparison.
        on_pause: called with the seconds for which the check has held up training.
        blocker: a reason for which the optimizer keeps its own step.
        level: of the log message if the optimizer cannot be tuned on its device.

    Attributes:
        chosen: "eager" or "fused"; the decision, also while the tuner compares both again.
        name: the optimizer's class.
        is_tuning: whether it is not yet decided which step runs.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        *,
        is_busy: Callable[[], bool] = lambda: False,
        on_pause: Callable[[float], None] = lambda seconds: None,
        blocker: str | None = None,
        level: int = logging.WARNING,
    ) -> None:
        self._settings, self._level = settings, level
        self._is_busy, self._on_pause = is_busy, on_pause
        self._thread = threading.get_ident()
        self._verdict: gate.Verdict | None = None
        self._fitness = Fitness()
        self._begin: float | None = None
        self._ran = EAGER
        self._own_flags: list[tuple[dict[str, Any], Any, Any]] = []  # of the groups, while a fused step runs
        self._is_check_due, self._num_tries = False, 0
        self._is_unproven, self._num_proofs = False, 0
        self._num_plain, self._why_plain = 0, ""
        self.chosen = self._next = EAGER
        self._reason = "waiting for the first step with gradients"
        self.name = type(optimizer).__name__
        self.is_tuning = True
        self._optimizer = weakref.ref(optimizer, lambda _: self._fitness.forget())
        self._driver: TunerDriver | None = None
        self._is_stopped = False
        self._hooks: list[RemovableHandle] = []
        _sessions[optimizer] = self
        if (reason := blocker or why_never(optimizer, settings)) is not None:
            self._stop(reason)  # wrappers of other libraries may lack the attributes for hooks
            return
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_pre_hook(lambda _: self._put_back()),
        ]
        self._stop_unless_on_cpu(optimizer)

    @property
    def reason(self) -> str:
        """Why the step runs as it does, as a sentence."""
        if not self._num_plain:
            return self._reason
        return f"{self._reason}; the plain step ran {self._num_plain} times since: {self._why_plain}"

    @property
    def gate_result(self) -> Json | None:
        """The report's gate object for the fused step; None before the check."""
        return self._verdict.to_dict() if self._verdict is not None else None

    def snapshot(self) -> TunerSnapshot | None:
        """Returns the tuner's state for the report; None before tuning."""
        return self._driver.tuner.snapshot() if self._driver is not None else None

    def close(self) -> None:
        """Ends tuning. The optimizer runs its own step from now on."""
        self._put_back()
        self._end("restored")
        optimizer = self._optimizer()
        if optimizer is not None:
            _sessions.pop(optimizer, None)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Makes the step fused if it may be. A closure makes the gradients, so the step begins after it."""
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return None
        self._put_back()
        self._begin, self._is_unproven = None, False
        is_over = self._is_stopped and self._next == EAGER
        if is_over or _is_paused or not startup.has_machinery():
            return None
        closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
        if closure is None:
            self._begin_step(optimizer)
            return None
        then_begin = functools.partial(self._after_closure, optimizer, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": then_begin}
        return (args[0], then_begin, *args[2:]), kwargs

    def _after_closure(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self._begin_step(optimizer)
        return loss

    def _begin_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._begin = time.perf_counter()
        self._ran = EAGER
        # The optimizer that steps may be made from the one that was tuned, and share its hooks.
        reason = why_plain() if optimizer is self._optimizer() else why_never(optimizer, self._settings)
        if reason is not None:
            self._end(reason)
        elif self._next == FUSED:
            self._fuse(optimizer)

    def _fuse(self, optimizer: torch.optim.Optimizer) -> None:
        """Sets the flags for this step, unless its gradients do not fit."""
        if (reason := self._fitness.why_not_now(optimizer)) is not None:
            self._num_plain, self._why_plain = self._num_plain + 1, reason
            self._is_unproven = reason == UNPROVEN
            return
        self._ran = FUSED
        self._own_flags = [(group, group["fused"], group["foreach"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False

    def _put_back(self) -> None:
        """Gives the groups their own flags again."""
        for group, fused, foreach in self._own_flags:
            group["fused"], group["foreach"] = fused, foreach
        self._own_flags = []

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        self._put_back()
        if self._begin is None or _is_paused:
            return
        if self._is_unproven:
            self._prove_again(optimizer)
        if self._is_stopped:
            return
        seconds = max(time.perf_counter() - self._begin, 1e-9)
        if self._driver is None and not self._start(optimizer):
            return
        assert self._driver is not None
        if self._is_check_due:
            self._check(optimizer)
        elif self._driver.num_quiet > 0 or (self._settings.mode != "deterministic" and self._is_busy()):
            self._driver.pass_steps(1, seconds)
            return
        else:
            self._driver.report_passed()
            self._driver.tuner.step_finished(self._ran, seconds, disturbed=self._ran != self._next)
        driver = self._driver
        driver.advance(lambda action: self._carry_out(optimizer, action))
        if not self._is_stopped and not self._is_check_due and driver.rest() == FOREVER:
            self._stop(self._reason)

    # --- tuning -------------------------------------------------------------------------------------------------------

    def _start(self, optimizer: torch.optim.Optimizer) -> bool:
        """Makes the tuner at the end of the first step with gradients. Returns whether there is one."""
        if not any(True for _ in trained(optimizer)):
            return False
        module = native.load()
        if module is None:
            self._stop(native.why_missing())
            return False
        config: TunerConfig = {"mode": self._settings.mode, "arms": [FUSED]}
        config |= {"capture_seconds": _CHECK_S, "search_fraction": _SHARE, "budget_fraction": _SHARE}
        if self._settings.budget_s is not None:
            config["budget_seconds"] = self._settings.budget_s
        self._driver = TunerDriver(module.Tuner(config))
        self._reason = "its steps have been too short so far to pay for tuning"
        return True

    def _check(self, optimizer: torch.optim.Optimizer) -> bool:
        """Gates the fused step, with the gradients of the step that has just ended. Returns whether it is done."""
        self._stop_unless_on_cpu(optimizer)
        if not self._is_stopped and (blocker := why_never(optimizer, self._settings)) is not None:
            self._stop(blocker)
        if self._is_stopped:
            return False
        reason = "other code watches its operators" if is_watched() else why_unfit(optimizer)
        reason = reason or (None if any(True for _ in trained(optimizer)) else "its gradients are gone after the step")
        self._is_check_due = reason is not None
        if reason is not None:
            self._reason, self._num_tries = f"waiting: {reason}", self._num_tries + 1
            if self._num_tries == _MOST_TRIES:
                self._stop(reason)
            return False
        seconds = self._prove(optimizer)
        if seconds is None:
            return False
        assert self._driver is not None
        self._driver.tuner.capture_finished(seconds)
        return True

    def _prove_again(self, optimizer: torch.optim.Optimizer) -> None:
        """Gates the fused step again, for parameters or options that are new. Requires: the gradients are fit."""
        self._is_unproven = False
        if self._num_proofs < _MOST_PROOFS and not is_watched() and any(True for _ in trained(optimizer)):
            self._prove(optimizer)

    def _prove(self, optimizer: torch.optim.Optimizer) -> float | None:
        """Gates the fused step. Returns the seconds that it took; None if the plain step must run from now on."""
        begun = time.perf_counter()
        self._num_proofs += 1
        try:
            self._verdict = check_fused(optimizer, self._settings)
        except Exception as error:
            logger.debug("the fused step of %s cannot be checked", self.name, exc_info=True)
            self._end(f"checking the fused step failed with {type(error).__name__}: {described(error)}")
            return None
        seconds = time.perf_counter() - begun
        self._on_pause(seconds)
        if not self._verdict.accepted:
            self._end(f"the fused step is not used: {self._verdict.reason}")
            return None
        self._fitness.proven |= kinds_of(optimizer)
        return seconds

    def _carry_out(self, optimizer: torch.optim.Optimizer, action: TunerAction) -> bool:
        assert self._driver is not None
        match action["kind"]:
            case "capture":
                self._is_check_due = True
                return self._check(optimizer)
            case "compile" | "load":
                self._driver.tuner.arm_changed(FUSED, State.READY)
                return True
            case "run":
                self._next = action["arm"]
            case "decide" | "rollback":
                self.chosen = self._next = action["arm"] if action["kind"] == "decide" else EAGER
                self._reason, self.is_tuning = action["reason"], False
                logger.info("optimizer %s: %s (%s)", self.name, self.chosen, self._reason)
        return False

    # --- the end ------------------------------------------------------------------------------------------------------

    def _stop_unless_on_cpu(self, optimizer: torch.optim.Optimizer) -> None:
        reason = why_eager(p for group in optimizer.param_groups for p in group["params"])
        if reason is not None:
            logger.log(self._level, "optimizer %s: eager (%s)", self.name, reason)
            self._stop(reason)

    def _end(self, reason: str) -> None:
        """Switches to the plain step permanently."""
        if self.chosen == FUSED:
            logger.info("optimizer %s: eager (%s)", self.name, reason)
        self.chosen = self._next = EAGER
        self._num_plain = 0
        self._stop(reason)

    def _stop(self, reason: str) -> None:
        """Stops tuning. If the fused step was chosen, the hooks stay: they run it, and notice other ranks."""
        self._reason, self._is_stopped, self.is_tuning = reason, True, False
        if self._next == EAGER:
            self._fitness.forget()
            self._hooks = removed(self._hooks)


def optimizer_session(optimizer: torch.optim.Optimizer) -> OptimizerSession | None:
    """Returns the session of an optimizer that was passed to ``optimize`` or found, or None."""
    return _sessions.get(optimizer)


def pause_optimizers(paused: bool) -> None:
    """Makes every optimizer run its own step while paused, and the chosen step again afterwards."""
    global _is_paused
    _is_paused = paused
