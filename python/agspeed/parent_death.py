# SPDX-License-Identifier: Apache-2.0
"""Ends a process together with the process that started it, even if that one is killed and cannot end it itself.

Uses Linux's prctl(PR_SET_PDEATHSIG). A call holds for the calling process alone: it also survives exec, but not fork.
"""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["end_with", "outlive_parent"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded beforehand, because a forked child of several threads must not load anything


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Makes the kernel send this process a signal once the thread that started it ends. Call it first in the new
    process.

    parent: the process that wants it. If that one has ended already, this process exits with code 1. It need not be the
    direct parent, because a wrapper of the interpreter may stand between them.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent and not _is_alive(parent):
        os._exit(1)


def outlive_parent() -> None:
    """Undoes `end_with` for this process."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0)


def _is_alive(pid: int) -> bool:
    """Whether a process has not ended. An ended process still exists until its parent has waited for it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return False
    return text[text.rindex(b")") + 2 :][:1] not in (b"Z", b"X")
