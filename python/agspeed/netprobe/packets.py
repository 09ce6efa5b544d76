# SPDX-License-Identifier: Apache-2.0
"""Finds the largest packet that a path carries: with UDP datagrams that must not be fragmented, and an echo.

    doctor -> echo   the echo's token, a number, and padding to the size in question
    echo -> doctor   the token and the number: 20 bytes, never more than it received

An echo answers only datagrams with its token. The listener sends the token over a connection that has proven its key.
A firewall may stop UDP but not TCP. Then the size stays unknown, which is not a fault.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import struct
import time

from agspeed.netprobe.model import Rail
from agspeed.netprobe.wire import bind_to, is_v6

__all__ = ["LEAST", "TOKEN_BYTES", "answer", "largest_packet", "open_echo"]

TOKEN_BYTES = 16
LEAST = 1200  # every path that carries IPv6 carries IP packets of this size

_NUMBER = struct.Struct("!I")
_MOST = 65_535
_HEADER_BYTES = {4: 28, 6: 48}  # IP and UDP
_TRIES = 3
_LEAST_WAIT_S = 0.2  # least time to wait for the answers of one try; longer if four round trips take longer
_SIZES_AT_ONCE = 16
# IP_MTU_DISCOVER and IPV6_MTU_DISCOVER. PROBE: never fragment, and ignore the path MTU that routers have reported.
_DISCOVER = {4: (socket.IPPROTO_IP, 10), 6: (socket.IPPROTO_IPV6, 23)}
_PROBE = 3


def open_echo(rail: Rail) -> socket.socket:
    """Returns a UDP socket on the rail. When a datagram has come, its owner calls `answer`."""
    made = socket.socket(socket.AF_INET6 if is_v6(rail.address) else socket.AF_INET, socket.SOCK_DGRAM)
    bind_to(made, rail.address, rail.device)
    made.setblocking(False)
    return made


def answer(echo: socket.socket, token: bytes) -> None:
    """Reads one datagram and answers it if it has the token."""
    with contextlib.suppress(OSError):
        datagram, sender = echo.recvfrom(_MOST)
        head = datagram[: TOKEN_BYTES + _NUMBER.size]
        if hmac.compare_digest(head[:TOKEN_BYTES], token):
            echo.sendto(head, sender)


def largest_packet(mine: Rail, theirs: Rail, token: bytes, round_trip_s: float, deadline: float) -> int | None:
    """The size in bytes of the largest IP packet that arrives at the other rail, up to the MTU of both interfaces.

    None if the echo does not even answer small packets, or if the time is over.
    """
    with open_echo(mine) as made:
        version = 6 if is_v6(mine.address) else 4
        level, option = _DISCOVER[version]
        made.setsockopt(level, option, _PROBE)
        made.connect((theirs.address, theirs.udp_port))
        search = _Search(made, token, _HEADER_BYTES[version], max(_LEAST_WAIT_S, 4 * round_trip_s), deadline)
        return search.run(min(mine.mtu, theirs.mtu, _MOST))


class _Search:
    """Narrows down between a size that arrives and one that does not."""

    def __init__(self, made: socket.socket, token: bytes, headers: int, wait_s: float, deadline: float) -> None:
        self._socket = made
        self._token = token
        self._headers = headers
        self._wait_s = wait_s
        self._deadline = deadline

    def run(self, most: int) -> int | None:
        small = min(LEAST, most)
        arrived = self._arriving([small, most])
        if not arrived or (most not in arrived and time.monotonic() >= self._deadline):
            return None
        good, bad = max(arrived), most
        while good < bad - 1 and good != most:
            if time.monotonic() >= self._deadline:
                return good
            step = max((bad - good) // (_SIZES_AT_ONCE + 1), 1)
            tried = list(range(good + step, bad, step))
            good = max([good, *self._arriving(tried)])
            bad = min([size for size in tried if size > good], default=bad)
        return good

    def _arriving(self, sizes: list[int]) -> set[int]:
        """The sizes that arrive in at least one of several tries."""
        arrived: set[int] = set()
        for _ in range(_TRIES):
            missing = [size for size in sizes if size not in arrived]
            for size in missing:
                self._send(size)
            arrived |= self._answers(set(missing))
            if arrived.issuperset(sizes):
                break
        return arrived

    def _send(self, size: int) -> None:
        head = self._token + _NUMBER.pack(size)
        with contextlib.suppress(OSError):  # larger than the interface allows, or an earlier datagram was refused
            self._socket.send(head + os.urandom(max(size - self._headers - len(head), 0)))

    def _answers(self, awaited: set[int]) -> set[int]:
        arrived: set[int] = set()
        until = min(time.monotonic() + self._wait_s, self._deadline)
        while arrived != awaited and (left := until - time.monotonic()) > 0:
            if not select.select([self._socket], [], [], left)[0]:
                break
            with contextlib.suppress(OSError):
                datagram = self._socket.recv(_MOST)
                if len(datagram) == TOKEN_BYTES + _NUMBER.size and hmac.compare_digest(
                    datagram[:TOKEN_BYTES], self._token
                ):
                    arrived.add(_NUMBER.unpack(datagram[TOKEN_BYTES:])[0] & _MOST)
        return arrived & awaited
