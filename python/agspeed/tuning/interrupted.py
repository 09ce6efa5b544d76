# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and signals while training waits for agspeed. The user sees where their own code stood, and nothing of ours;
handlers of theirs are kept out of code that swallows exceptions."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
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


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Dynamo and compiles take what a handler of the user's raises for their own. So handlers written in Python run
    behind the block, once for each signal that came within it, and what they raise passes on from there. Ctrl-C's own
    handler is not deferred. In other threads than the main one Python runs no handlers, and the block does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    own: dict[int, Any] = {n: h for n, h in handlers.items() if callable(h) and h is not signal.default_int_handler}
    came: dict[int, FrameType | None] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came[number] = frame

    for number in own:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in own.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        for number, frame in came.items():
            own[number](number, frame)
