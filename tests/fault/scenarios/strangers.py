# SPDX-License-Identifier: Apache-2.0
"""Strangers: clients without a key that connect to every listener of a group.

They send other protocols, noise, nothing, partial handshakes, and requests that look like a peer's without a valid
proof. Runs on a host of its own, in one thread, at a steady rate.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import random
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agspeed.netbed import Host

__all__ = ["Address", "Knocks", "knock", "listeners"]

Address = tuple[str, int]

_LISTENING = "0A"  # the state in /proc/net/tcp
_SAY_AFTER_S = 0.002
_NAP_S = 0.002
# A request as in comm/wire/handshake.h: magic, version, protection, epoch, both ranks, nonce and proof.
_REQUEST = struct.Struct("<IHHIII64s")
_MAGIC = 0x48534741
_VERSION = 2
_AUTHENTICATED = 2
_EPOCH = 1
_WORDS = (
    b"",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"SSH-2.0-probe\r\n",
    b"AGSH",
)


@dataclass(frozen=True)
class Knocks:
    """The results: connections tried, connections that the kernel refused, and bytes that listeners sent back."""

    made: int
    failed: int
    answered_bytes: int
    seconds: float


def listeners(_: Host) -> list[Address]:
    """The IPv4 addresses and ports at which processes of this host listen."""
    found = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == _LISTENING:
            address, port = local.split(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return found


def knock(_: Host, targets: Sequence[Address], per_second: float, seconds: float, seed: int) -> Knocks:
    """Connects to the targets in turn, at that rate over all targets."""
    chance = random.Random(seed)
    # time to send, socket, how long to stay after that
    silent: collections.deque[tuple[float, socket.socket, float]] = collections.deque()
    staying: list[tuple[float, int, socket.socket]] = []  # time to close, descriptor, socket
    made = failed = answered = 0
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds or silent or staying:
        while elapsed < seconds and made < elapsed * per_second:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(targets[made % len(targets)])
            stays_s = 1.5 if chance.random() < 0.1 else chance.uniform(0, 0.05)
            silent.append((elapsed + _SAY_AFTER_S, connection, stays_s))
            made += 1
        while silent and silent[0][0] <= elapsed:
            _, connection, stays_s = silent.popleft()
            failed += not _say(connection, _words(chance))
            heapq.heappush(staying, (elapsed + stays_s, connection.fileno(), connection))
        while staying and staying[0][0] <= elapsed:
            answered += _leave(heapq.heappop(staying)[2], chance)
        time.sleep(_NAP_S)
    return Knocks(made, failed, answered, seconds)


def _words(chance: random.Random) -> bytes:
    kind = chance.randrange(3)
    if kind == 0:
        return chance.choice(_WORDS)
    if kind == 1:
        return chance.randbytes(chance.randrange(1, 200))
    sender, receiver = chance.sample(range(4), 2)
    return _REQUEST.pack(_MAGIC, _VERSION, _AUTHENTICATED, _EPOCH, sender, receiver, chance.randbytes(64))


def _say(connection: socket.socket, words: bytes) -> bool:
    """Sends the bytes. Returns False if there is no connection."""
    with contextlib.suppress(OSError):
        connection.getpeername()
        connection.send(words)
        return True
    return False


def _leave(connection: socket.socket, chance: random.Random) -> int:
    """Closes a connection, at times by a reset. Returns the number of bytes that the listener had sent."""
    received = 0
    with connection, contextlib.suppress(OSError):
        received = len(connection.recv(4096))
        if chance.random() < 0.3:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return received
