# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while training waits for agspeed: the user sees where his own code stood, and nothing of ours."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).parents[1]) + "/"


def hide_own_frames(error: BaseException) -> None:
    """Python shows the traceback of `error`, should it end the program, up to the call that led here.

    A program that catches it sees all frames, and handlers that replace `sys.excepthook` afterwards do.
    """
    previous = sys.excepthook

    def show(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        if raised is error:
            _cut(trace)
        previous(kind, raised, trace)

    sys.excepthook = show


def _cut(trace: TracebackType | None) -> None:
    """Ends the chain before the first frame of ours."""
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename.startswith(_OURS):
            trace.tb_next = None
        trace = trace.tb_next
