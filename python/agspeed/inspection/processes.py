# SPDX-License-Identifier: Apache-2.0
"""Looks at the process of a rank in /proc. The kernel may hide some facts about processes of other users. Any thread;
nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agspeed.reporting.secrets import masked

__all__ = ["Process", "look_at"]

_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a disk or a device",
    "T": "is stopped",
    "t": "is stopped by a debugger",
    "Z": "has ended",
    "X": "has ended",
}


@dataclass(frozen=True)
class Process:
    """The main thread of a process."""

    pid: int
    user: int
    state: str
    """One letter, as in ps."""
    kernel_function: str
    """The function of the kernel in which it waits; empty: unknown."""
    command: str
    """With secrets masked, because people copy what they see."""

    @property
    def is_stopped(self) -> bool:
        return self.state in "Tt"

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"

    @property
    def doing(self) -> str:
        """The verb and its place: "sleeps in hrtimer_nanosleep"."""
        place = f" in {self.kernel_function}" if self.kernel_function and self.state in "SD" else ""
        return _STATES.get(self.state, f"is in state {self.state}") + place


def look_at(pid: int) -> Process | None:
    """Returns None if there is no such process."""
    folder = Path(f"/proc/{pid}")
    try:
        state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        user = folder.stat().st_uid
        words = (folder / "cmdline").read_bytes()[:4096].decode(errors="replace").split("\0")
    except (OSError, IndexError):
        return None
    return Process(pid, user, state, _waits_in(folder), " ".join(masked(words)).strip())


def _waits_in(folder: Path) -> str:
    try:
        found = (folder / "wchan").read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""
    return "" if found == "0" else found
