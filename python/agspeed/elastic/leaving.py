# SPDX-License-Identifier: Apache-2.0
"""SIGTERM to a member of an elastic job: it finishes its step, leaves the job, and exits with status 0."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from agspeed.elastic.control import Control

__all__ = ["leaving_by_sigterm"]


@contextlib.contextmanager
def leaving_by_sigterm(connection: Control) -> Iterator[None]:
    """Lets SIGTERM mean: finish the step, leave the job, and exit with status 0. A handler of the user's stays."""

    def handle(number: int, frame: Any) -> None:
        if connection.is_over:
            raise SystemExit(128 + number)
        threading.Thread(target=connection.leave).start()  # not here, because the main thread may be sending

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, handle)
    connection.end_main_thread_by(signal.SIGTERM)
    try:
        yield
    finally:
        connection.end_main_thread_by(None)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
