# SPDX-License-Identifier: Apache-2.0
"""Finds the inspection points of this host, and asks them (comm/world/inspection_point.h).

A point is an abstract unix socket, which any process may open. So an answer counts only if the kernel says that a
process of this user, or of the user that root asks about, owns the socket. Every answer is limited in time and length.
Threading: any thread; nothing is kept.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agspeed.inspection import model

__all__ = ["TIMEOUT_S", "Answer", "Point", "ask", "find"]

TIMEOUT_S = 2.0
"""All points together have this time to answer."""
_MOST_BYTES = 4 << 20
_MOST_POINTS = 1024
_PACKET_BYTES = 1 << 16
_NAME = re.compile(r"@agspeed-inspect-([0-9a-f]{0,8})-(\d{1,7})-(\d{1,7})-[0-9a-f]{16}")
_LISTENS = 0x10000
_CREDENTIALS = struct.Struct("iii")  # pid, uid and gid


@dataclass(frozen=True)
class Point:
    """A socket that its process opened as an inspection point."""

    name: str
    job: str
    rank: int
    world_size: int
    process: int
    user: int


@dataclass(frozen=True)
class Answer:
    point: Point
    rank: model.Rank | None
    """None: there is no usable answer."""
    problem: str = ""
    """Why there is none, as the end of a sentence about the process."""


def find() -> list[str]:
    """Returns the names of all points in this network namespace, of all users."""
    found = []
    for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and int(fields[3], 16) & _LISTENS and _NAME.fullmatch(fields[7]):
            found.append(fields[7])
    return found[:_MOST_POINTS]


def ask(names: Sequence[str], is_wanted: Callable[[Point], bool], timeout_s: float = TIMEOUT_S) -> list[Answer]:
    """Asks all points whose owner `is_wanted` accepts, at the same time. Returns their answers, in no order. Points
    whose process has ended give no answer."""
    end = time.monotonic() + timeout_s
    open_: dict[socket.socket, tuple[Point, bytearray]] = {}
    answers = []
    with selectors.DefaultSelector() as selector:
        try:
            for name in names:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.setblocking(False)
                point = _connected(connection, name)
                if point is None or not is_wanted(point):
                    connection.close()
                    continue
                open_[connection] = point, bytearray()
                selector.register(connection, selectors.EVENT_READ)
            while open_ and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    connection = key.fileobj  # type: ignore[assignment]
                    point, received = open_[connection]
                    if _is_over(connection, received):
                        selector.unregister(connection)
                        connection.close()
                        del open_[connection]
                        answers.append(_answer(point, bytes(received)))
        finally:
            for connection in open_:
                connection.close()
    silent = f"did not answer within {timeout_s:g} s"
    return answers + [Answer(point, None, silent) for point, _ in open_.values()]


def _connected(connection: socket.socket, name: str) -> Point | None:
    """Connects. Returns the point, or None if its process has ended or takes no more connections."""
    try:
        connection.connect("\0" + name[1:])
        content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    process, user, _ = _CREDENTIALS.unpack(content)
    # A process that was forked while the socket was open keeps it after the end of its owner.
    if process > 0 and not os.path.exists(f"/proc/{process}"):
        return None
    job, rank, size = _NAME.fullmatch(name).groups()  # type: ignore[union-attr]
    return Point(name, job, int(rank), int(size), process, user)


def _is_over(connection: socket.socket, received: bytearray) -> bool:
    """Reads one packet. Returns whether it was the last one."""
    try:
        packet = connection.recv(_PACKET_BYTES)
    except BlockingIOError:
        return False
    except OSError:
        return True
    received += packet
    return not packet or len(received) > _MOST_BYTES


def _answer(point: Point, received: bytes) -> Answer:
    if not received:
        return Answer(point, None, "closed the connection without an answer; it may be ending")
    if len(received) > _MOST_BYTES:
        return Answer(point, None, f"sent more than {_MOST_BYTES >> 20} MiB, which no rank of agspeed does")
    try:
        rank = model.parsed(received)
    except ValueError as error:
        return Answer(point, None, f"sent an answer that cannot be read: {error}")
    if (rank.job, rank.rank, rank.world_size) != (point.job, point.rank, point.world_size):
        return Answer(point, None, f"sent an answer about rank {rank.rank} of another job")
    return Answer(point, rank)
