# SPDX-License-Identifier: Apache-2.0
"""Sends the newest text of a process to a server, now and then, in a thread of its own.

Only the newest text waits: a text that comes before the earlier one was sent replaces it. A text that was not taken is
not sent again. There is one warning in a process, and a long pause after each failure.

Threading: any thread may call the functions. None of them waits for the network, except that `finish` waits for a
limited time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from agspeed.log import warn_once

__all__ = ["Reporter"]

INTERVAL_S = 5.0
"""Between two texts. Trainer's documentation asks for this much."""
PAUSE_S = 300.0
"""After a failure."""


class Reporter:
    """A thread that sends. It begins with the first text, and does not keep the process alive."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        failure: str,
        interval_s: float = INTERVAL_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """failure: the first words of the warning, such as "the progress was not reported"."""
        self._send, self._failure = send, failure
        self._interval_s, self._pause_s = interval_s, pause_s
        self._changed = threading.Condition()
        self._newest: bytes | None = None
        self._thread: threading.Thread | None = None
        self._has_failed = self._is_sending = self._must_finish = False

    def put(self, text: bytes) -> None:
        """Sends the text when its turn comes, unless another one comes before that."""
        with self._changed:
            self._newest = text
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agspeed-reporter", daemon=True)
                self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Sends the text that waits now rather than in its turn, and ends the thread. Waits `timeout_s` at most.

        After a failure the text is dropped, so that the end of a process does not wait for a lost server.
        """
        with self._changed:
            self._must_finish = True
            self._changed.notify_all()
            if self._has_failed and not self._is_sending:
                return
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while (text := self._next()) is not None:
            try:
                self._send(text)
                self._has_failed = False
            except Exception as error:  # a report must not end a training
                self._has_failed = True
                warn_once(
                    ("reporter", self._failure),
                    f"{self._failure}: {_reason(error)}. Training goes on. The next attempt comes after "
                    f"{self._pause_s:.0f} s, and this warning comes once.",
                )
            self._rest(self._pause_s if self._has_failed else self._interval_s)

    def _next(self) -> bytes | None:
        """Waits for a text and takes it. Returns: None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._must_finish)
            if self._must_finish and self._has_failed:
                return None
            text, self._newest = self._newest, None
            self._is_sending = text is not None
            return text

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            self._is_sending = False
            self._changed.wait_for(lambda: self._must_finish, max(0.0, until - time.monotonic()))


def _reason(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error or type(error).__name__).strip().rstrip(".")
    name = getattr(error, "filename", None)
    return f"{name}: {text}" if isinstance(name, str) else text
