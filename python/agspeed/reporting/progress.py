# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of tuning to a waiting user: the present activity, the time left, and the result.

There are three forms. On a terminal, one line is redrawn, only inside `update` and at most ten times a second. It
starts no thread and replaces no stream, so a training loop's own prints and progress bars keep working. In a notebook,
one output is updated. Elsewhere (a log file, a pod) each phase prints one line, through `logging` if the application
has configured it, else to the stream. The displayed fraction never decreases.

Thread-safety: none; the training thread owns it. In a group of ranks only rank 0 shows anything.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, TextIO

from agspeed.log import logger
from agspeed.reporting import format as fmt

__all__ = ["Progress", "duration"]

_MIN_INTERVAL_S = 0.1
_BAR_WIDTH = 24
_DEFAULT_COLUMNS = 80


class Progress:
    """Shows the tuner's progress. Every method is cheap and never raises on a closed or broken stream."""

    def __init__(self, enabled: bool = True, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._enabled = enabled and os.environ.get("RANK", "0") == "0"
        self._is_terminal = self._enabled and _is_terminal(self._stream)
        self._notebook: Any = None
        self._is_notebook = self._enabled and stream is None and _is_notebook()
        self._last_drawn = float("-inf")
        self._share = 0.0
        self._phases: set[str] = set()
        self._bar_shown = False

    def begin(self, subject: str, about_s: float) -> None:
        """Prints one line before the wait that says how long it may take."""
        self._say(f"{subject} is tuned on its first steps, about {duration(about_s)}; Ctrl-C is safe")

    def update(self, share: float, phase: str, about_s: float) -> None:
        """Shows the phase, the fraction done (`share`, in 0..1) and the approximate seconds left (`about_s`).

        Args:
            phase: the phase's name and, after a comma, details that may change during it: "compiling inductor, 2 of 5".
        """
        self._share = max(self._share, min(share, 0.99))
        if self._is_terminal or self._is_notebook:
            self._draw(phase, about_s)
        elif (name := phase.partition(",")[0]) not in self._phases:
            self._phases.add(name)
            self._say(f"{self._share:4.0%}  {phase}, about {duration(about_s)} left")

    def end(self, sentence: str) -> None:
        """Prints the last line, which says what was decided. `update` may be called again later."""
        self.clear()
        self._share = 0.0
        self._phases.clear()
        self._say(sentence)

    def clear(self) -> None:
        """Removes the bar."""
        if self._bar_shown:
            self._bar_shown = False
            self._write("\r\x1b[2K")

    def _draw(self, phase: str, about_s: float) -> None:
        now = time.monotonic()
        if now - self._last_drawn < _MIN_INTERVAL_S:
            return
        self._last_drawn = now
        text = f" {self._share:4.0%} {phase}, about {duration(about_s)} left"
        if self._is_notebook:
            self._show(f"agspeed {_bar(self._share)}{text}")
        else:
            self._bar_shown = True
            room = max(_columns(self._stream) - len("agspeed ") - _BAR_WIDTH - 1, 0)
            self._write(f"\r\x1b[2Kagspeed \x1b[36m{_bar(self._share)}\x1b[0m{text[:room]}\r")

    def _say(self, line: str) -> None:
        if not self._enabled:
            return
        if self._is_notebook:
            self._show(f"agspeed: {line}")
        elif logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
            logger.info("%s", line)
        else:
            self._write(f"agspeed: {line}\n")

    def _show(self, text: str) -> None:
        """Replaces the notebook's output by `text`."""
        data = {"text/plain": text}
        if self._notebook is None:
            ipython: Any = sys.modules["IPython"]
            self._notebook = ipython.display.display(data, raw=True, display_id=True)
        else:
            self._notebook.update(data, raw=True)

    def _write(self, text: str) -> None:
        if not self._enabled:
            return
        try:
            self._stream.write(fmt.encodable(text, getattr(self._stream, "encoding", None)))
            self._stream.flush()
        except (OSError, ValueError):
            self._enabled = self._is_terminal = False


def duration(seconds: float) -> str:
    """Returns "40 s", "3 min" or "2 h", with the precision of an estimate."""
    if seconds < 100:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def _bar(share: float) -> str:
    filled = round(share * _BAR_WIDTH)
    return "━" * filled + "╌" * (_BAR_WIDTH - filled)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_COLUMNS
    except (OSError, ValueError):
        return _DEFAULT_COLUMNS


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
