# SPDX-License-Identifier: Apache-2.0
"""Connections between doctors, with limits on time and size. Lines of JSON follow the handshake of keys.py.

Every call ends at the connection's deadline at the latest, even if the other end keeps sending single bytes. Failures
raise a `PeerError`. Its text continues a sentence that begins with the peer's name: "closed the connection".
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from typing import Any

from agspeed import bounded_json
from agspeed.errors import AgspeedError

__all__ = ["Connection", "PeerError", "bind_to", "connect", "is_v6"]

MAX_LINE = 1 << 16
_BIND_TO_DEVICE = 25  # SO_BINDTODEVICE


class PeerError(AgspeedError):
    """A failure of a peer. The text continues a sentence that begins with the peer's name."""


class Connection:
    """One connection, owned by one thread. Leaving the context manager closes it."""

    def __init__(self, made: socket.socket, deadline: float) -> None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = made
        self.deadline = deadline  # of time.monotonic()
        self._unread = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self._wait(lambda: self.socket.sendall(data))

    def receive(self, size: int) -> bytes:
        """Receives exactly `size` bytes."""
        while len(self._unread) < size:
            self._unread += self._more()
        found, self._unread = self._unread[:size], self._unread[size:]
        return found

    def send_json(self, message: dict[str, Any]) -> None:
        self.send(json.dumps(message).encode() + b"\n")

    def receive_json(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            if len(self._unread) > MAX_LINE:
                raise PeerError(f"sent a line of more than {MAX_LINE} bytes")
            self._unread += self._more()
        line, _, self._unread = self._unread.partition(b"\n")
        with contextlib.suppress(ValueError):
            message = bounded_json.loads(line)
            if isinstance(message, dict):
                return message
        raise PeerError("sent something that no `agspeed doctor` sends")

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message and returns the answer."""
        self.send_json(message)
        return self.receive_json()

    def _more(self) -> bytes:
        received: bytes = self._wait(lambda: self.socket.recv(MAX_LINE))
        if not received:
            raise PeerError("closed the connection")
        return received

    def _wait(self, call: Any) -> Any:
        left = self.deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            return call()
        except TimeoutError:
            raise PeerError("accepts connections, but does not answer in time") from None
        except (BrokenPipeError, ConnectionResetError):
            raise PeerError("closed the connection") from None
        except OSError as error:
            raise PeerError(f"broke the connection: {error.strerror or error}") from None


def connect(address: str, port: int, deadline: float, source: str = "", device: str = "") -> Connection:
    """Connects from the address `source`, through the interface `device` if this process may choose it.

    Raises: PeerError. Its text distinguishes a refusal, silence, and a host that is not there.
    """
    made = socket.socket(socket.AF_INET6 if is_v6(address) else socket.AF_INET)
    try:
        bind_to(made, source, device)
        made.settimeout(max(deadline - time.monotonic(), 0.001))
        made.connect((address, port))
    except OSError as error:
        made.close()
        raise PeerError(_why_not_connected(error)) from None
    return Connection(made, deadline)


def bind_to(made: socket.socket, source: str, device: str) -> None:
    """Makes the socket send through an interface and from an address, if the kernel permits the choice."""
    if device:
        with contextlib.suppress(PermissionError):
            made.setsockopt(socket.SOL_SOCKET, _BIND_TO_DEVICE, device.encode())
    if source:
        made.bind((source, 0))


def is_v6(address: str) -> bool:
    return ":" in address


def _why_not_connected(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refuses connections: no process listens there, or a firewall rejects them"
    if isinstance(error, TimeoutError):
        return "is silent: packets are dropped"
    if error.errno in (errno.EHOSTUNREACH, errno.EHOSTDOWN):
        return "is not there: no answer to ARP, or a firewall says so"
    if error.errno == errno.ENETUNREACH:
        return "cannot be reached: there is no route to its network"
    return f"cannot be reached: {error.strerror or error}"
