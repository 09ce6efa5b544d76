# SPDX-License-Identifier: Apache-2.0
"""Controllers decide which plan a session runs next. One per mode of tuning; all share the session's few verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from agspeed.backends import candidates
from agspeed.config import Settings

if TYPE_CHECKING:
    from agspeed.tuning.history import History
    from agspeed.tuning.outcome import Outcome


class Steerable(Protocol):
    """The verbs of a session that a controller may use."""

    history: History
    regions: list[Any]
    settings: Settings

    def run_plan(self, plan: str) -> None: ...
    def settle(self, plan: str, reason: str) -> None: ...
    def compile_regions(self, candidate: str, regions: list[Any] | None = None) -> list[Outcome]: ...


class Controller(ABC):
    """Called at the borders of training steps, on the training thread."""

    def __init__(self, session: Steerable) -> None:
        self.session = session

    @abstractmethod
    def before_step(self) -> None:
        """A step is about to begin."""

    def after_step(self, times: Any) -> None:
        """A step ended; `times` has .busy and .input_wait in seconds."""

    def close(self) -> None:
        """The session ends: stop background work."""


class FixedOrder(Controller):
    """``mode="deterministic"``: no timing. Captures at the first step, then takes the first candidate that passes."""

    def __init__(self, session: Steerable) -> None:
        super().__init__(session)
        self._captured = False

    def before_step(self) -> None:
        if not self._captured:
            self._captured = True
            self.session.history.enter_phase("capture")
            self.session.run_plan("graph-eager")
            return
        self.session.history.enter_phase("compile")
        self._choose()
        self.session.history.enter_phase("steady")

    def _choose(self) -> None:
        session = self.session
        if not session.regions:
            session.settle("eager", "no graph could be captured")
            return
        reasons = []
        for name in enabled_candidates(session.settings):
            outcomes = session.compile_regions(name)
            if any(outcome.usable for outcome in outcomes):
                session.settle(name, "first of the fixed order that passed the gate")
                return
            reasons += [f"{name}: {outcome.reason}" for outcome in outcomes[:1]]
        session.settle("eager", "no candidate passed: " + "; ".join(reasons))


def enabled_candidates(settings: Settings) -> list[str]:
    """Candidates to try, in order: those of ``backends=`` as given, else all that are on by default."""
    if settings.backends is not None:
        return [name for name in settings.backends if name != "eager"]
    return [name for name, candidate in candidates().items() if candidate.default]


def make_controller(session: Steerable, settings: Settings) -> Controller:
    """The controller of ``settings.mode``."""
    return FixedOrder(session)
