# SPDX-License-Identifier: Apache-2.0
"""The facts about a host that decide whether ranks can run there, as its agent finds them. torch is not imported."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import site
import socket
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from agspeed.launch.frames import FrameError
from agspeed.launch.launcher_link import LauncherLink
from agspeed.launch.reach import kernel

__all__ = ["Facts", "Interface", "answer"]

_SHARED_MEMORY = "/dev/shm"
_LONGEST_TEXT, _MOST_INTERFACES = 256, 1024


@dataclass(frozen=True)
class Interface:
    """A network interface with its IPv4 address, which may be empty. is_up: whether it has a carrier."""

    name: str
    address: str
    is_up: bool


@dataclass(frozen=True)
class Facts:
    """A host.

    Attributes:
        torch: the installed version; empty without torch.
        clock: the time there, in seconds.
        shared_memory: free bytes in /dev/shm; -1 if it cannot be used.
        most_descriptors: the highest limit that a process may set for itself; -1 for none.
        room: free bytes where Python's packages are installed.
    """

    python: str
    torch: str
    clock: float
    shared_memory: int
    most_descriptors: int
    room: int
    interfaces: tuple[Interface, ...]

    @classmethod
    def of(cls, value: Any) -> Self:
        """Raises: FrameError for other values than an agent's."""
        match value:
            case {
                "python": str(python),
                "torch": str(torch),
                "clock": float(clock),
                "shared_memory": int(shared_memory),
                "most_descriptors": int(most_descriptors),
                "room": int(room),
                "interfaces": list(interfaces),
            } if len(interfaces) <= _MOST_INTERFACES:
                texts, found = [python, torch], tuple(map(_interface, interfaces))
                if all(text.isprintable() and len(text) <= _LONGEST_TEXT for text in texts):
                    return cls(python, torch, clock, shared_memory, most_descriptors, room, found)
        raise FrameError("facts that are not complete")


def answer(link: LauncherLink) -> NoReturn:
    """Answers the launcher's questions until it ends the check. Raises: ClosedError then.

    The launcher compares clocks by the second answer, which takes no time.
    """
    found = _of_this_host()
    while True:
        link.wait_for("ask")
        link.send("facts", {**found, "clock": time.time()})


def _of_this_host() -> Mapping[str, Any]:
    if sys.flags.no_site:  # the agent of the launcher's own host
        site.main()
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "shared_memory": _free_bytes(_SHARED_MEMORY),
        "most_descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "room": _free_bytes(sysconfig.get_path("purelib")),
        "interfaces": [asdict(_look_at(name)) for _, name in socket.if_nameindex()],
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _free_bytes(folder: str) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return -1
    return status.f_bavail * status.f_frsize


def _look_at(name: str) -> Interface:
    try:
        is_up = Path("/sys/class/net", name, "carrier").read_text().strip() == "1"
    except OSError:  # it is switched off
        is_up = False
    of_ipv4 = kernel.ipv4(name)
    return Interface(name, of_ipv4[0] if of_ipv4 else "", is_up)


def _interface(value: Any) -> Interface:
    match value:
        case {"name": str(name), "address": str(address), "is_up": bool(is_up)}:
            if all(text.isprintable() and len(text) <= _LONGEST_TEXT for text in (name, address)):
                return Interface(name, address, is_up)
    raise FrameError("an interface that is none")
