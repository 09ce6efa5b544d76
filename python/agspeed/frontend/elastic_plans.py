# SPDX-License-Identifier: Apache-2.0
"""The plans of optimized modules in elastic jobs (`agspeed.elastic`), whose processes change.

After a change, all processes follow the one whose state they take over. If it has decided on a plan, processes that
have not decided replay that plan. If it still tunes, all tune anew, because measurements with other ranks are void.

Threads: the training thread.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from torch import nn

from agspeed.config import Settings
from agspeed.frontend.live_sessions import open_session
from agspeed.frontend.session import Session, session_of
from agspeed.frontend.target import target_of
from agspeed.regions.plan import EAGER, is_plan

__all__ = ["PLANS", "Plans"]


class Plans:
    """An attachment (see `elastic/attachments.py`)."""

    def __init__(self) -> None:
        self._expected: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

    def of(self, module: nn.Module) -> list[str] | None:
        """Returns the state and the plan of the module's session; None if it has none."""
        session = session_of(module)
        return [session.state, session.plan] if session is not None else None

    def put(self, module: nn.Module, value: Any) -> None:
        session = session_of(module)
        match value:
            case [str(state), str(plan)] if plan == EAGER or is_plan(plan):
                self._expected.pop(module, None)
                if session is not None:
                    self._follow(module, session, state, plan)
                elif state != "tuning":
                    self._expected[module] = plan

    def settings_for(self, module: nn.Module, settings: Settings) -> Settings:
        """Returns the settings of a module's first session: with the others' plan, if this process knows it."""
        plan = self._expected.pop(module, None)
        return settings if plan is None else _replaying(settings, plan)

    def _follow(self, module: nn.Module, session: Session, state: str, plan: str) -> None:
        if state == "tuning":
            if session.state != "tuning" or session.wrapper is not None:
                _begin_anew(module, session, session.settings)
        elif session.state == "tuning":
            _begin_anew(module, session, _replaying(session.settings, plan))


def _replaying(settings: Settings, plan: str) -> Settings:
    return dataclasses.replace(settings, mode="deterministic", plan=None, replayed=plan)


def _begin_anew(module: nn.Module, session: Session, settings: Settings) -> None:
    session.close()
    open_session(target_of(module), settings)


PLANS = Plans()
