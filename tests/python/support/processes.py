# SPDX-License-Identifier: Apache-2.0
"""Whether processes have ended, for tests of what ends with what."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_LONGEST_S = 20.0  # only processes that stay reach it


def is_alive(pid: int) -> bool:
    """Returns whether the process runs or is stopped. A process that only waits to be reaped has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left_after_a_while(pids: Iterable[int], seconds: float = _LONGEST_S) -> list[int]:
    """Waits until the processes have ended, at most for some seconds. Returns the processes that are left."""
    deadline = time.monotonic() + seconds
    left = list(filter(is_alive, pids))
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = list(filter(is_alive, left))
    return left
