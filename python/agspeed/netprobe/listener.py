# SPDX-License-Identifier: Apache-2.0
"""Listener: serves doctors on other hosts. It has ports and an echo on every rail, and answers callers with its key.

A stranger costs one handshake of fixed size. Their number at one time and their duration are limited. Only a caller
that has proven the key gets an answer, and can make this host send or connect: to the caller's own address only.

One thread accepts and echoes; another thread serves each connection. Leaving the context manager closes all ports.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agspeed.errors import AgspeedError
from agspeed.netprobe import packets
from agspeed.netprobe.keys import is_proven
from agspeed.netprobe.model import HostRecord, Rail
from agspeed.netprobe.probe import Prober
from agspeed.netprobe.rate import receive_stream, send_stream
from agspeed.netprobe.wire import Connection, PeerError, bind_to, is_v6

__all__ = ["Listener"]

_MOST_CONNECTIONS = 256
_HANDSHAKE_S = 5.0
_VISIT_S = 20.0
_MOST_STREAM_S = 2.0
_MOST_LOOK_S = 15.0
_POLL_S = 0.2


class Listener:
    """Serves doctors while it is open; a context manager. `record` describes this host with its open ports.

    The listener calls `on_visit(address, problem)` on its own threads. The problem is empty for a caller that has
    proven the key, else it says why the caller was refused.
    """

    def __init__(
        self,
        host: HostRecord,
        key: bytes,
        ports: Sequence[int] = (),
        on_visit: Callable[[str, str], None] | None = None,
    ) -> None:
        """Opens a port of the system's choice on each rail, as ranks do, and the given `ports` on all addresses.

        Raises: AgspeedError if a port cannot be opened.
        """
        self._key = key
        self._on_visit = on_visit or (lambda _address, _problem: None)
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._token = os.urandom(packets.TOKEN_BYTES)
        self._selector = selectors.DefaultSelector()
        self._is_closing = threading.Event()
        self._sockets: list[socket.socket] = []
        try:
            fixed = tuple(map(self._listen_everywhere, ports))
            self.record = replace(host, rails=tuple(self._open(rail, fixed) for rail in host.rails))
        except BaseException:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._serve, name="agspeed-doctor", daemon=True)
        self._thread.start()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing.set()
        self._thread.join()
        self._close_sockets()

    def _open(self, rail: Rail, fixed: tuple[int, ...]) -> Rail:
        listening = self._socket_on(rail)
        echo = packets.open_echo(rail)
        self._sockets.append(echo)
        self._selector.register(echo, selectors.EVENT_READ, packets.answer)
        ports = (*fixed, listening.getsockname()[1])
        return replace(rail, tcp_ports=ports, udp_port=echo.getsockname()[1])

    def _socket_on(self, rail: Rail) -> socket.socket:
        made = socket.socket(socket.AF_INET6 if is_v6(rail.address) else socket.AF_INET)
        self._sockets.append(made)
        try:
            bind_to(made, rail.address, rail.device)
            made.listen(_MOST_CONNECTIONS)
        except OSError as error:
            raise AgspeedError(f"cannot listen at {rail.address} ({rail.name}): {error.strerror}") from None
        made.setblocking(False)
        self._selector.register(made, selectors.EVENT_READ, None)
        return made

    def _listen_everywhere(self, port: int) -> int:
        has_both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if has_both else socket.AF_INET
        try:
            made = socket.create_server(("", port), family=family, backlog=_MOST_CONNECTIONS, dualstack_ipv6=has_both)
        except OSError as error:
            raise AgspeedError(
                f"cannot listen at port {port}: {error.strerror}; end the process that uses it, or choose another "
                "with --port"
            ) from None
        self._sockets.append(made)
        made.setblocking(False)
        self._selector.register(made, selectors.EVENT_READ, None)
        return int(made.getsockname()[1])

    def _close_sockets(self) -> None:
        self._selector.close()
        for each in self._sockets:
            each.close()

    def _serve(self) -> None:
        while not self._is_closing.is_set():
            for ready, _ in self._selector.select(_POLL_S):
                if ready.data is not None:
                    ready.data(ready.fileobj, self._token)
                    continue
                with contextlib.suppress(OSError):
                    accepted, _ = ready.fileobj.accept()  # type: ignore[union-attr]
                    self._start_visit(accepted)

    def _start_visit(self, accepted: socket.socket) -> None:
        if not self._places.acquire(blocking=False):
            accepted.close()
            return
        threading.Thread(target=self._visit, args=(accepted,), daemon=True).start()

    def _visit(self, accepted: socket.socket) -> None:
        caller = ""
        try:
            with contextlib.suppress(OSError), Connection(accepted, time.monotonic() + _HANDSHAKE_S) as connection:
                caller = _plain(accepted.getpeername()[0])
                if not is_proven(connection, self._key):
                    self._on_visit(caller, "has another job key")
                    return
                self._on_visit(caller, "")
                connection.deadline = time.monotonic() + _VISIT_S
                while self._answer(connection):
                    pass
        except PeerError:
            pass  # the caller has gone
        finally:
            self._places.release()

    def _answer(self, connection: Connection) -> bool:
        """Carries out one request. Returns: whether more requests may follow on this connection."""
        request = connection.receive_json()
        what = request.get("do")
        if what == "describe":
            connection.send_json(self.record.to_json())
        elif what == "time":
            connection.send_json({"time": time.time()})
        elif what == "token":
            connection.send_json({"token": self._token.hex()})
        elif what == "look back":
            connection.send_json(self._look_back(connection, request))
        elif what == "send":
            send_stream(connection, _seconds(request, _MOST_STREAM_S))
            return False
        elif what == "receive":
            rate = receive_stream(connection, _seconds(request, _MOST_STREAM_S))
            connection.send_json({"bits_per_second": rate})
            return False
        else:
            raise PeerError("sent an unknown request")
        return True

    def _look_back(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        """Checks the path back to the rail that this connection comes from."""
        own, caller = (_plain(end[0]) for end in (connection.socket.getsockname(), connection.socket.getpeername()))
        try:
            mine = next(rail for rail in self.record.rails if rail.address == own)
            theirs = replace(Rail.from_json(request["rail"]), address=caller)
        except (KeyError, StopIteration, TypeError, ValueError):
            raise PeerError("asked for an impossible path") from None
        prober = Prober(self.record.name, self._key, time.monotonic() + _seconds(request, _MOST_LOOK_S))
        return prober.look(mine, str(request.get("host")), theirs).to_json()


def _seconds(request: dict[str, Any], most: float) -> float:
    seconds = request.get("seconds")
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= most:
        raise PeerError(f"asked for a measurement of {seconds!r} s; at most {most:g} s are allowed")
    return float(seconds)


def _plain(address: str) -> str:
    """The address without an IPv6 socket's prefix for IPv4 addresses, and without a scope."""
    return address.removeprefix("::ffff:").partition("%")[0]
