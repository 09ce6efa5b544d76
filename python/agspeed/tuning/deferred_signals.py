# SPDX-License-Identifier: Apache-2.0
"""Keeps the user's signal handlers out of Dynamo, which takes their exceptions for its own and swallows them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Handlers written in Python run behind the block, once for each signal that came within it. What they raise passes
    on from there. Ctrl-C's own handler is not deferred. In other threads than the main one Python runs no handlers, and
    the block does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    own = {n: h for n, h in handlers.items() if callable(h) and h is not signal.default_int_handler}
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
            handler: Any = own[number]
            handler(number, frame)
