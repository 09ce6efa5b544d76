# SPDX-License-Identifier: Apache-2.0
"""Opens the sessions of this process, pauses them together, and writes their reports when the process ends.

Sessions are held weakly: each belongs to its target. Threads: the training thread opens and pauses sessions.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Iterator

from agspeed.config import Settings
from agspeed.frontend.optimizers.session import pause_optimizers
from agspeed.frontend.session import Session
from agspeed.frontend.target import Target
from agspeed.log import warn_once
from agspeed.tuning.interrupted import deferred_signals
from agspeed.tuning.memory.retained import RETAINED

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_pauses = 0


def open_session(target: Target, settings: Settings) -> Session:
    """Puts `target` under the control of a new session."""
    session = Session(target, settings, _write_report)
    if _pauses:
        session.set_paused(True)
    _sessions.add(session)
    return session


def live_sessions() -> list[Session]:
    """Returns the sessions that were opened and are not closed."""
    return [session for session in _sessions if not session.is_closed]


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Runs every optimized target eagerly inside the block."""
    global _pauses
    _pauses += 1
    if _pauses == 1:
        pause_optimizers(True)
        RETAINED.set_paused(True)
        for session in live_sessions():
            session.set_paused(True)
    try:
        yield
    finally:
        _pauses -= 1
        if _pauses == 0:
            pause_optimizers(False)
            RETAINED.set_paused(False)
            for session in live_sessions():
                session.set_paused(False)


def _write_report(session: Session) -> None:
    """Writes the session's report if the settings name a path. A failure is only a warning."""
    if session.settings.report is None:
        return
    with deferred_signals():
        try:
            from agspeed.frontend.session_report import make_report

            make_report(session).save(session.settings.report)
        except Exception as error:
            warn_once(("report", str(session.settings.report)), f"the report could not be written: {error}")


@atexit.register
def _save_reports() -> None:
    for session in live_sessions():
        if os.getpid() == session.owner:
            session.save_report()
