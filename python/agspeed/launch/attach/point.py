# SPDX-License-Identifier: Apache-2.0
"""The socket at which the agent of an elastic job can be reached on its host.

It is an abstract unix socket, so no file is left, whatever ends the agent. Its name ends in random digits, so no other
user can take it beforehand. Both sides ask the kernel for the other side's user, and accept their own only.

Any thread; stateless.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from agspeed.launch import frames

__all__ = ["connections", "is_of_this_user", "link", "listening"]

_BACKLOG = 8
_CREDENTIALS = struct.Struct("iii")  # pid, uid and gid
_TIMEOUT_S = 5.0


def listening(job: str, host: str) -> socket.socket:
    """Opens the socket of this process. job: its id; host: the name by which the launcher knows this host.

    Raises: OSError.
    """
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(f"\0{_prefix(job, host)}{os.urandom(8).hex()}")
        found.listen(_BACKLOG)
    except OSError:
        found.close()
        raise
    found.setblocking(False)
    return found


def connections(job: str, host: str) -> Iterator[socket.socket]:
    """Yields a connection to each agent of this user here that `listening` made reachable. The caller closes it."""
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for name in {line.split()[-1] for line in lines if f"@{_prefix(job, host)}" in line}:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_TIMEOUT_S)
        is_ours = False
        with contextlib.suppress(OSError):  # that agent has just ended
            connection.connect("\0" + name[1:])
            is_ours = is_of_this_user(connection)
        if is_ours:
            yield connection
        else:
            connection.close()


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether a process of this user has opened the other end."""
    content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(content)[1] == os.geteuid())


def link(connection: socket.socket, most_bytes: int) -> frames.Link:
    """Returns a connection as frames. The caller still owns `connection`. most_bytes: as `frames.Link` takes it."""
    return frames.Link(os.dup(connection.fileno()), os.dup(connection.fileno()), most_bytes)


def _prefix(job: str, host: str) -> str:
    digest = hashlib.sha256(f"{job}\0{host}".encode()).hexdigest()[:32]
    return f"agspeed-job-{os.geteuid()}-{digest}-"
