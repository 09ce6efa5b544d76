# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while training waits for agspeed: the user sees where his own code stood, and nothing of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

_OURS = str(Path(__file__).parents[1]) + "/"
_MARK = "_agspeed_hides_its_frames"


def hide_own_frames(error: BaseException) -> None:
    """Python shows the traceback of `error`, should it end the program, up to the call that led here.

    A program that catches it sees all frames, and so do those that do without `sys.excepthook`, as notebooks.
    """
    setattr(error, _MARK, True)  # a reference to it would keep the frames of the user's program alive
    if not isinstance(sys.excepthook, _WithoutOurs):
        sys.excepthook = _WithoutOurs(sys.excepthook)


class _WithoutOurs:
    """An exception hook that cuts the tracebacks of marked errors before it hands them on."""

    def __init__(self, previous: Callable[..., Any]) -> None:
        self._previous = previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if hasattr(error, _MARK):
            _cut(trace)
        self._previous(kind, error, trace)


def _cut(trace: TracebackType | None) -> None:
    """Ends the chain before the first frame of ours."""
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename.startswith(_OURS):
            trace.tb_next = None
        trace = trace.tb_next
