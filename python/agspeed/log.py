# SPDX-License-Identifier: Apache-2.0
"""Logging: one standard-library logger called "agspeed", silent below WARNING unless the user asks for more.

No handler is installed by default, so an application's own logging configuration decides where lines go (Python's
last-resort handler prints warnings to stderr). Asking for INFO or TRACE, by `AGSPEED_DEBUG` or `debug` in
agspeed.toml, attaches one stderr handler if the application has configured none.

Every line starts with "agspeed:", or "agspeed [rank 3/host]:" when the process is one rank of several.

Thread-safety: everything here may be called from any thread.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Hashable

__all__ = ["LEVELS", "TRACE", "logger", "set_level", "warn_once"]

TRACE = 5
LEVELS = {"warn": logging.WARNING, "info": logging.INFO, "trace": TRACE}

logger = logging.getLogger("agspeed")
logging.addLevelName(TRACE, "TRACE")

_seen: set[Hashable] = set()
_seen_lock = threading.Lock()
_handler: logging.Handler | None = None


class _Prefix(logging.Filter):
    """Puts "agspeed", and the rank if there are several, in front of every message."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "agspeed_prefixed", False):
            record.msg = f"{_prefix()} {record.getMessage()}"
            record.args = None
            record.agspeed_prefixed = True
        return True


def _prefix() -> str:
    rank = os.environ.get("RANK")
    if rank is None:
        return "agspeed:"
    return f"agspeed [rank {rank}/{socket.gethostname()}]:"


def set_level(name: str) -> None:
    """Applies the resolved `debug` setting ("warn", "info" or "trace"); safe to call more than once."""
    global _handler
    level = LEVELS[name]
    logger.setLevel(level)
    if level < logging.WARNING and _handler is None and not logger.hasHandlers():
        _handler = logging.StreamHandler()
        logger.addHandler(_handler)


def warn_once(key: Hashable, message: str) -> bool:
    """Logs `message` as a warning the first time `key` is seen in this process.

    Returns: whether it was logged now. Use one key per cause (for example `("fallback", region, reason)`).
    """
    with _seen_lock:
        if key in _seen:
            return False
        _seen.add(key)
    logger.warning("%s", message)
    return True


logger.addFilter(_Prefix())
