# SPDX-License-Identifier: Apache-2.0
"""How large packets may be on a path: UDP datagrams that nobody may fragment, and an echo that says which arrived.

    doctor -> echo   the echo's token, a number, and padding to the size in question
    echo -> doctor   the token and the number: 20 bytes, never more than came

An echo answers only those who know its token, which is told over a connection that has proven its key. TCP may be open
where a firewall stops UDP: then no size is found out, and nothing is wrong with that.
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
LEAST = 1200  # IP packets of so many bytes pass wherever IPv6 does

_NUMBER = struct.Struct("!I")
_MOST = 65_535
_HEADER_BYTES = {4: 28, 6: 48}  # IP and UDP
_TRIES = 3
_PATIENCE_S = 0.2  # for the answers of one try, and never less than a few round trips
_SIZES_AT_ONCE = 16
# IP_MTU_DISCOVER and IPV6_MTU_DISCOVER; PROBE: never fragment, and forget what routers said about the path.
_DISCOVER = {4: (socket.IPPROTO_IP, 10), 6: (socket.IPPROTO_IPV6, 23)}
_PROBE = 3


def open_echo(rail: Rail) -> socket.socket:
    """A socket on the rail; whoever waits for it hands what comes to `answer`."""
    made = socket.socket(socket.AF_INET6 if is_v6(rail.address) else socket.AF_INET, socket.SOCK_DGRAM)
    bind_to(made, rail.address, rail.device)
    made.setblocking(False)
    return made


def answer(echo: socket.socket, token: bytes) -> None:
    """Answers one datagram that has come, if it knows the token."""
    with contextlib.suppress(OSError):
        datagram, sender = echo.recvfrom(_MOST)
        head = datagram[: TOKEN_BYTES + _NUMBER.size]
        if hmac.compare_digest(head[:TOKEN_BYTES], token):
            echo.sendto(head, sender)


def largest_packet(mine: Rail, theirs: Rail, token: bytes, round_trip_s: float, deadline: float) -> int | None:
    """The most bytes of an IP packet that arrive at the other rail, up to what both interfaces allow.

    None: not even small ones are answered, or there was no time to find out.
    """
    with open_echo(mine) as made:
        version = 6 if is_v6(mine.address) else 4
        level, option = _DISCOVER[version]
        made.setsockopt(level, option, _PROBE)
        made.connect((theirs.address, theirs.udp_port))
        search = _Search(made, token, _HEADER_BYTES[version], max(_PATIENCE_S, 4 * round_trip_s), deadline)
        return search.run(min(mine.mtu, theirs.mtu, _MOST))


class _Search:
    """Narrows down between a size that arrives and one that does not."""

    def __init__(self, made: socket.socket, token: bytes, headers: int, patience_s: float, deadline: float) -> None:
        self._socket = made
        self._token = token
        self._headers = headers
        self._patience_s = patience_s
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
        """Those of the sizes that arrive at one of several tries."""
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
        with contextlib.suppress(OSError):  # larger than the interface takes, or an earlier one was refused
            self._socket.send(head + os.urandom(max(size - self._headers - len(head), 0)))

    def _answers(self, awaited: set[int]) -> set[int]:
        arrived: set[int] = set()
        until = min(time.monotonic() + self._patience_s, self._deadline)
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
