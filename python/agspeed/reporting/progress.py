# SPDX-License-Identifier: Apache-2.0
"""Progress of tuning: a one-line bar on a terminal, plain lines otherwise, nothing when switched off.

The bar is drawn only inside `update`, at most ten times a second: no thread is started and no stream is replaced, so a
training loop's own prints and bars keep working. The cursor stays at the start of the bar's line, and whatever the
program prints next takes that line over. Where the stream is not a terminal (a log file, a pod) an activity is one
line, and another when the share done has changed: candidates timed in turn do not fill the log.

Thread-safety: none; the training thread owns it. In a group of ranks only rank 0 shows anything.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

__all__ = ["Progress"]

_MIN_INTERVAL_S = 0.1
_BAR_WIDTH = 24


class Progress:
    """Shows what the tuner does. Every method is cheap and never raises on a closed or broken stream."""

    def __init__(self, enabled: bool = True, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._enabled = enabled and os.environ.get("RANK", "0") == "0"
        self._is_terminal = self._enabled and _is_terminal(self._stream)
        self._last_drawn = float("-inf")
        self._written: set[tuple[str, str]] = set()
        self._bar_shown = False

    def update(self, done: float, activity: str) -> None:
        """Shows `activity` ("trial of native, 40 of 160 pairs") with `done` in 0..1."""
        if not self._enabled:
            return
        if not self._is_terminal:
            self._write_activity(done, activity)
            return
        now = time.monotonic()
        if now - self._last_drawn >= _MIN_INTERVAL_S:
            self._last_drawn = now
            self._bar_shown = True
            self._write(f"\r\x1b[2K{_bar(done, activity, _columns(self._stream))}\r")

    def close(self) -> None:
        """Removes the bar. `update` may be called again later."""
        if self._enabled:
            self._write(self._erase())

    def _write_activity(self, done: float, activity: str) -> None:
        # Numbers in an activity change at every update: only its words and the share done are news.
        share, words = f"{_clamp(done):4.0%}", "".join(each for each in activity if not each.isdigit())
        if (share, words) not in self._written:
            self._written.add((share, words))
            self._write(f"agspeed: tuning {share}  {activity}\n")

    def _erase(self) -> str:
        shown, self._bar_shown = self._bar_shown, False
        return "\r\x1b[2K" if shown else ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._enabled = False


def _bar(done: float, activity: str, columns: int) -> str:
    filled = round(_clamp(done) * _BAR_WIDTH)
    bar = f"\x1b[36m{'━' * filled}\x1b[2m{'━' * (_BAR_WIDTH - filled)}\x1b[0m"
    text = f" {_clamp(done):4.0%} {activity}"
    room = columns - len("agspeed ") - _BAR_WIDTH - 1
    return f"agspeed {bar}{text[: max(room, 0)]}"


def _clamp(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 80


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False
