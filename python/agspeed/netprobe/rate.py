# SPDX-License-Identifier: Apache-2.0
"""Measures the rate of one TCP connection in one direction, by the receiver's clock. Both ends stop after a time."""

from __future__ import annotations

import contextlib
import socket
import time

from agspeed.netprobe.wire import Connection

__all__ = ["receive_stream", "send_stream"]

_CHUNK = bytes(1 << 16)
_UNSENT_BYTES = 1 << 17  # limit for bytes in the sender's kernel, because they leave after the time is over
_GRACE_S = 1.0  # for bytes in flight when the sender stops
_NOT_SENT_LOW_WATER_MARK = 25  # TCP_NOTSENT_LOWAT


def send_stream(connection: Connection, seconds: float) -> None:
    """Sends for `seconds` and closes this direction. Never raises, because the receiver counts what has arrived."""
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
    """Receives a stream of `seconds`. Returns: bits per second, without the first bytes, which start the clock."""
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
