# SPDX-License-Identifier: Apache-2.0
"""Tunes the optimizer's step: uses torch's fused kernels if they are correct and faster.

torch has a single-pass kernel for SGD, Adam, AdamW and Adagrad that runs at memory speed, but uses it only on request.
An `OptimizerSession` tries it. The first step with gradients gates it, with the same parameters, gradients and state
through both implementations. A separate tuner then times ``optimizer.step()`` alone in paired blocks. Only the flags
``fused`` and ``foreach`` of the parameter groups change. The optimizer's state keeps its format, so a switch is safe
between any two steps, and ``state_dict`` can be loaded everywhere.

The fused step rounds differently from the plain one. If several ranks train, each would switch at different steps, and
parameters that are equal at all ranks would diverge. So the plain step runs from the first step that finds other ranks.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from agspeed import native
from agspeed.backends.base import Runner
from agspeed.config import Settings
from agspeed.devices.placement import why_eager
from agspeed.frontend import startup
from agspeed.frontend.steps import removed
from agspeed.log import logger
from agspeed.regions.state import State
from agspeed.reporting.parts import Json
from agspeed.tuning.company import num_ranks
from agspeed.tuning.driver import FOREVER, TunerDriver

if TYPE_CHECKING:
    from agspeed._native import GroupTuner, Tuner, TunerAction, TunerSnapshot
    from agspeed.tuning.gate import check as gate

FUSED = "fused"
_FUSIBLE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
_sessions: weakref.WeakKeyDictionary[torch.optim.Optimizer, OptimizerSession] = weakref.WeakKeyDictionary()
_is_paused = False


class OptimizerSession:
    """Tunes one optimizer through its own step hooks. Created by ``optimize(model, optimizer)``."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Settings) -> None:
        self._settings = settings
        self._original = [(group.get("fused"), group.get("foreach")) for group in optimizer.param_groups]
        self._verdict: gate.Verdict | None = None
        self._begin = 0.0
        self.chosen = "eager"
        self.reason = "waiting for the first step with gradients"
        self.name = type(optimizer).__name__
        self._optimizer = weakref.ref(optimizer)
        self._driver: TunerDriver | None = None
        self._is_stopped = False
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        _sessions[optimizer] = self
        blocker = _why_not(optimizer, settings)
        if blocker is not None:
            self._stop(blocker)
        else:
            self._stop_unless_on_cpu(optimizer)

    @property
    def gate_result(self) -> Json | None:
        """The report's gate object for the fused step; None before the check."""
        return self._verdict.to_dict() if self._verdict is not None else None

    def snapshot(self) -> TunerSnapshot | None:
        """Returns the tuner's state for the report; None before tuning."""
        return self._driver.tuner.snapshot() if self._driver is not None else None

    def close(self) -> None:
        """Gives the optimizer its own flags back."""
        self.chosen = "eager"
        self._stop("restored")
        optimizer = self._optimizer()
        if optimizer is not None:
            self._use(optimizer, fused=False)
            _sessions.pop(optimizer, None)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        is_over = self._is_stopped and self.chosen != FUSED
        if is_over or _is_paused or not startup.has_machinery():
            return
        if (reason := _why_plain()) is not None:
            self._end_fusing(optimizer, reason)
        elif self._verdict is None and any(p.grad is not None for g in optimizer.param_groups for p in g["params"]):
            self._check(optimizer)
        self._begin = time.perf_counter()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        driver = self._driver
        if driver is None or self._is_stopped or _is_paused:
            return
        seconds = max(time.perf_counter() - self._begin, 1e-9)
        if driver.num_quiet > 0:
            driver.pass_steps(1, seconds)
            return
        driver.report_passed()
        driver.tuner.step_finished(self.chosen, seconds)
        driver.advance(lambda action: self._carry_out(optimizer, driver.tuner, action))
        if driver.rest() == FOREVER:
            self._stop(self.reason)

    def _stop_unless_on_cpu(self, optimizer: torch.optim.Optimizer) -> None:
        reason = why_eager(p for group in optimizer.param_groups for p in group["params"])
        if reason is not None:
            logger.warning("optimizer %s: eager (%s)", self.name, reason)
            self._stop(reason)

    def _end_fusing(self, optimizer: torch.optim.Optimizer, reason: str) -> None:
        """Switches to the plain step permanently."""
        if self.chosen == FUSED:
            self._use(optimizer, fused=False)
        self.chosen = "eager"
        logger.info("optimizer %s: eager (%s)", self.name, reason)
        self._stop(reason)

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        """Gates the fused step. optimizer: the one that steps. It may be made from the one passed to `optimize` and
        have its hooks."""
        self._stop_unless_on_cpu(optimizer)
        if not self._is_stopped and (blocker := _why_not(optimizer, self._settings)) is not None:
            self._stop(blocker)
        if self._is_stopped:
            return
        module = native.load()
        if module is None:
            self._stop(native.why_missing())
            return
        self._verdict = check_fused(optimizer, self._settings)
        if not self._verdict.accepted:
            self._stop(f"the fused step is not used: {self._verdict.reason}")
            return
        mode = self._settings.mode
        self._driver = TunerDriver(module.Tuner({"mode": mode, "arms": [FUSED], "capture_seconds": 0.0}))

    def _carry_out(self, optimizer: torch.optim.Optimizer, tuner: Tuner | GroupTuner, action: TunerAction) -> bool:
        match action["kind"]:
            case "capture":
                tuner.capture_finished(0.0)
                return True
            case "compile" | "load":
                tuner.arm_changed(FUSED, State.READY)
                return True
            case "run":
                self.chosen = action["arm"]
            case "decide" | "rollback":
                self.chosen = action["arm"] if action["kind"] == "decide" else "eager"
                self.reason = action["reason"]
                logger.info("optimizer %s: %s (%s)", type(optimizer).__name__, self.chosen, self.reason)
        self._use(optimizer, fused=self.chosen == FUSED)
        return False

    def _use(self, optimizer: torch.optim.Optimizer, *, fused: bool) -> None:
        for group, (own_fused, own_foreach) in zip(optimizer.param_groups, self._padded(optimizer), strict=True):
            group["fused"], group["foreach"] = (True, False) if fused else (own_fused, own_foreach)

    def _padded(self, optimizer: torch.optim.Optimizer) -> list[tuple[bool | None, bool | None]]:
        added = len(optimizer.param_groups) - len(self._original)
        return self._original + [(None, None)] * added

    def _stop(self, reason: str) -> None:
        """Stops tuning. If the fused step was chosen, the hook before the step stays, to notice other ranks."""
        self.reason, self._is_stopped = reason, True
        kept = self._hooks[:1] if self.chosen == FUSED else []
        self._hooks = kept + removed(self._hooks[len(kept) :])


def check_fused(optimizer: torch.optim.Optimizer, settings: Settings) -> gate.Verdict:
    """Compares one fused step with one plain step from the same parameters, gradients and state."""
    from agspeed.tuning.gate import check as gate

    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    states = [dict(optimizer.state.get(p, {})) for p in parameters]
    keys = [[key for key, value in state.items() if isinstance(value, torch.Tensor)] for state in states]
    flat_state = [state[key] for state, names in zip(states, keys, strict=True) for key in names]

    def update(fused: bool) -> Runner:
        def run(*tensors: torch.Tensor) -> Sequence[object]:
            return _step_on(tensors, len(parameters), optimizer, states, keys, fused)

        return run

    policy = gate.Policy(numerics=settings.numerics, gradients=False)
    with torch.no_grad():
        tensors = [p.detach() for p in parameters] + gradients + flat_state
        return gate.check(update(True), update(False), tensors, policy)


def _step_on(
    tensors: Sequence[torch.Tensor],
    count: int,
    original: torch.optim.Optimizer,
    states: Sequence[dict[str, object]],
    keys: Sequence[Sequence[str]],
    fused: bool,
) -> Sequence[torch.Tensor]:
    """Runs one step of a copy of `original` on copies of its tensors. Returns the new parameters."""
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors[:count]]
    for parameter, gradient in zip(parameters, tensors[count : 2 * count], strict=True):
        parameter.grad = gradient.clone()
    remaining = iter(tensors[2 * count :])
    trained = iter(parameters)
    groups = []
    for group in original.param_groups:
        options = {key: copy.copy(value) for key, value in group.items() if key != "params"}
        options.update(fused=fused, foreach=False)
        groups.append({**options, "params": [next(trained) for p in group["params"] if p.grad is not None]})
    make: Any = type(original)
    replica = make([group for group in groups if group["params"]], lr=1e-3)
    for parameter, state, names in zip(parameters, states, keys, strict=True):
        if state:
            replica.state[parameter] = {**state, **{key: next(remaining).clone() for key in names}}
    replica.step()
    return [parameter.detach() for parameter in parameters]


def _why_plain() -> str | None:
    """Returns why the plain step must run, as a sentence, or None."""
    if (ranks := num_ranks()) == 1:
        return None
    return (
        f"{ranks} ranks train: the fused step rounds differently, and each would run it at steps of its own; make the "
        "optimizer with fused=True at every rank to fuse it"
    )


def _why_not(optimizer: torch.optim.Optimizer, settings: Settings) -> str | None:
    if type(optimizer) not in _FUSIBLE:
        name = type(optimizer).__name__
        is_derived = isinstance(optimizer, _FUSIBLE)
        return f"this {name} has a step of its own" if is_derived else f"torch has no fused step for {name}"
    if any(group.get("fused") for group in optimizer.param_groups):
        return "its step is fused already"
    if any(group.get("differentiable") or group.get("capturable") for group in optimizer.param_groups):
        return "differentiable and capturable optimizers keep their own step"
    if settings.numerics == "exact":
        return 'numerics="exact" keeps the plain step: the fused one rounds differently'
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(not p.is_floating_point() or p.layout is not torch.strided for p in parameters):
        return "a parameter is not a dense floating-point tensor"
    return _why_plain()


def optimizer_session(optimizer: torch.optim.Optimizer) -> OptimizerSession | None:
    """Returns the session of an optimizer that was passed to ``optimize``, or None."""
    return _sessions.get(optimizer)


def pause_optimizers(paused: bool) -> None:
    """Gives every optimizer its own step while paused, and the chosen step again afterwards."""
    global _is_paused
    _is_paused = paused
    for optimizer, session in list(_sessions.items()):
        if session.chosen == FUSED:
            session._use(optimizer, fused=not paused)
