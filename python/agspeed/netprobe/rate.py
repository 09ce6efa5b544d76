# SPDX-License-Identifier: Apache-2.0
"""How fast one TCP connection carries bytes in one direction. The receiver's clock counts; both ends are bounded."""

from __future__ import annotations

import contextlib
import socket
import time

from agspeed.netprobe.wire import Connection

__all__ = ["receive_stream", "send_stream"]

_CHUNK = bytes(1 << 16)
_UNSENT_BYTES = 1 << 17  # what may wait in the sender's kernel: it outlives the time
_GRACE_S = 1.0  # for what is under way when the sender stops
_NOT_SENT_LOW_WATER_MARK = 25  # TCP_NOTSENT_LOWAT


def send_stream(connection: Connection, seconds: float) -> None:
    """Sends for so long and closes this direction. Never raises: the receiver tells what has come."""
    made = connection.socket
    with contextlib.suppress(OSError):
        made.setsockopt(socket.IPPROTO_TCP, _NOT_SENT_LOW_WATER_MARK, _UNSENT_BYTES)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            made.settimeout(left)
            made.send(_CHUNK)
    with contextlib.suppress(OSError):
        made.shutdown(socket.SHUT_WR)


def receive_stream(connection: Connection, seconds: float) -> float:
    """Bits per second of a stream that is sent for so long: from the first bytes on, which do not count."""
    made = connection.socket
    buffer = bytearray(1 << 18)
    started = last = 0.0
    num_bytes = 0
    until = time.monotonic() + seconds + _GRACE_S
    with contextlib.suppress(OSError):
        while (left := until - time.monotonic()) > 0:
            made.settimeout(left)
            received = made.recv_into(buffer)
            if not received:
                break
            last = time.monotonic()
            num_bytes += received if started else 0
            started = started or last
    return 8 * num_bytes / (last - started) if num_bytes and last > started else 0.0
