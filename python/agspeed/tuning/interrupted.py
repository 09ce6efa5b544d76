# SPDX-License-Identifier: Apache-2.0
"""Handles Ctrl-C and signals while training waits for agspeed. Tracebacks end at the user's own code and omit agspeed's
frames. The user's signal handlers do not run inside code that swallows exceptions."""

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
    """If `error` ends the program, Python shows its traceback only up to the call into agspeed.

    A program that catches it sees all frames. So do programs that do not use `sys.excepthook`, such as notebooks.
    """
    setattr(error, _MARK, True)  # a mark: a stored reference to the error would keep the user's frames alive
    if not isinstance(sys.excepthook, _WithoutOurs):
        sys.excepthook = _WithoutOurs(sys.excepthook)


class _WithoutOurs:
    """An exception hook that cuts the tracebacks of marked errors and then calls the previous hook."""

    def __init__(self, previous: Callable[..., object]) -> None:
        self._previous = previous

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if hasattr(error, _MARK):
            _cut(trace)
        self._previous(kind, error, trace)


def _cut(trace: TracebackType | None) -> None:
    """Ends the traceback before agspeed's first frame."""
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename.startswith(_OURS):
            trace.tb_next = None
        trace = trace.tb_next


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Defers the user's Python signal handlers to the end of the block. Each runs once per signal that arrived.

    Dynamo and compilers would treat an exception from such a handler as their own; after the block it propagates.
    Ctrl-C's default handler is not deferred. Python runs handlers in the main thread alone, so in other threads the
    block does nothing."""
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
