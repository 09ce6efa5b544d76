# SPDX-License-Identifier: Apache-2.0
"""Finds the optimizers that step the parameters of optimized modules, at their first step, and tunes them.

A process-wide hook of torch.optim runs before each step. It remembers the optimizers that it has looked at, so that it
costs one look-up in a dictionary afterwards. It looks again if an optimizer gets another number of groups, and if
another module is optimized. It does not touch optimizers of other models.

Threads: the hook runs on any thread. An optimizer is tuned only if it steps on the thread that optimized its module.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from agspeed.config import Settings
from agspeed.frontend.history import History
from agspeed.frontend.optimizers.session import OptimizerSession, optimizer_session
from agspeed.frontend.steps import StepClock, leave_out, removed
from agspeed.frontend.target import ModuleTarget, Target
from agspeed.log import logger
from agspeed.torch_compat.autograd import current_backward

_MOST = 16
"""At most this number of optimizers of a module is tuned. A script that makes one in every step would slow down."""
_STEADY_STEPS = 64
"""While plans are compared, the plan changes after fewer steps than this."""
_PLAIN_MODES = frozenset({"deterministic"})
"""In these modes an optimizer that was found keeps its step, because the fused one rounds differently."""


class Session(Protocol):
    """The attributes of a target's session that the search uses."""

    target: Target
    settings: Settings
    state: str
    clock: StepClock
    history: History
    optimizers: list[OptimizerSession]


class OptimizerSearch:
    """The process's search for the optimizers of its sessions."""

    def __init__(self) -> None:
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._num_groups: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._hooks: list[RemovableHandle] = []

    def add(self, session: Session) -> None:
        """Begins to search for optimizers of a session's module, if its settings allow that.

        Call it before the session's clock starts: the hooks of clocks come and go, which is possible only while no
        other hook was registered after them.
        """
        if not session.settings.tune_optimizer or not isinstance(session.target, ModuleTarget):
            return
        self._sessions.add(session)
        self._num_groups.clear()
        if not self._hooks:
            self._hooks = [register_optimizer_step_pre_hook(self._before_step)]

    def end(self, session: Session) -> None:
        """Ends the search for a closed session. Its optimizers get their own steps back, unless they train a module of
        another session."""
        self._sessions.discard(session)
        for tuned in session.optimizers:
            if not any(tuned in other.optimizers for other in self._sessions):
                tuned.close()
        self._num_groups.clear()
        if not self._sessions:
            self._hooks = removed(self._hooks)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            if self._num_groups.get(optimizer) != len(optimizer.param_groups):
                self._num_groups[optimizer] = len(optimizer.param_groups)
                self._look_at(optimizer)
        except Exception:
            logger.debug("the optimizer %s is not tuned", type(optimizer).__name__, exc_info=True)

    def tune(
        self,
        optimizer: torch.optim.Optimizer,
        sessions: Sequence[Session],
        settings: Settings,
        *,
        blocker: str | None = None,
        level: int = logging.WARNING,
    ) -> None:
        """Tunes an optimizer of the modules of `sessions`. blocker, level: see `OptimizerSession`."""
        tuned = optimizer_session(optimizer) or OptimizerSession(
            optimizer, settings, is_busy=self._is_busy, on_pause=_pause_of(sessions), blocker=blocker, level=level
        )
        for session in sessions:
            if tuned not in session.optimizers:
                session.optimizers.append(tuned)

    def _look_at(self, optimizer: torch.optim.Optimizer) -> None:
        """Tunes an optimizer if it holds parameters of a session's module."""
        ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        sessions = [session for session in list(self._sessions) if _holds_any(session, ids)]
        if sessions and any(len(session.optimizers) <= _MOST for session in sessions):
            settings = next((each.settings for each in sessions if each.settings.numerics == "exact"), None)
            blocker = _why_left(optimizer, sessions)
            self.tune(optimizer, sessions, settings or sessions[0].settings, blocker=blocker, level=logging.INFO)

    def _is_busy(self) -> bool:
        """Whether times of steps of a session are being compared: its plan has changed a short time ago."""
        active = [each for each in list(self._sessions) if each.state != "eager" and not each.clock.is_resting]
        return any(session.history.timeline.steps_in_phase < _STEADY_STEPS for session in active)


def _holds_any(session: Session, ids: set[int]) -> bool:
    """Whether this thread trains the session's module, and it has one of the parameters with these ids."""
    return session.clock.is_own_thread() and any(id(parameter) in ids for parameter in session.target.parameters())


def _why_left(optimizer: torch.optim.Optimizer, sessions: Iterable[Session]) -> str | None:
    """Returns why an optimizer that was found keeps its step, besides the reasons for any optimizer; or None."""
    if optimizer.defaults.get("fused") is False:
        return "it was made with fused=False"
    if current_backward() >= 0:
        return "it steps inside of a backward"
    if mode := next((session.settings.mode for session in sessions if session.settings.mode in _PLAIN_MODES), None):
        return f'mode="{mode}" fuses the step of an optimizer only if it is passed to agspeed.optimize'
    if any(len(session.optimizers) >= _MOST for session in sessions):
        return f"{_MOST} optimizers of its model were found before, and no more are tuned"
    return None


def _pause_of(sessions: Iterable[Session]) -> Callable[[float], None]:
    waiting = weakref.WeakSet(sessions)

    def pause(seconds: float) -> None:
        leave_out(seconds)
        for session in list(waiting):
            session.history.stood_still("gate", seconds)

    return pause


SEARCH = OptimizerSearch()
