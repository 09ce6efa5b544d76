# SPDX-License-Identifier: Apache-2.0
"""Checks one path: its ports, the job key, the round-trip time, the clocks, the largest packet and the rate.

Each check ends at a deadline. Failures are recorded in the `Path`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable

from agspeed.netprobe import keys
from agspeed.netprobe.model import Path, PortState, Rail, number, text
from agspeed.netprobe.packets import largest_packet
from agspeed.netprobe.parallel import all_at_once
from agspeed.netprobe.rate import receive_stream, send_stream
from agspeed.netprobe.wire import Connection, PeerError, connect

__all__ = ["Prober"]

_CONNECT_S = 3.5  # the kernel gives up ARP after 3.1 s, and repeats a lost SYN after 1 s and 3 s
_HANDSHAKE_S = 3.0
_TALK_S = 5.0
_ROUND_TRIPS = 20


class Prober:
    """Checks paths from the host `name`, until `deadline` at the latest. Thread-safe."""

    def __init__(self, name: str, key: bytes, deadline: float) -> None:
        self.name = name
        self._key = key
        self._deadline = deadline

    def look(self, mine: Rail, host: str, theirs: Rail, then: Callable[[Connection, Path], None] | None = None) -> Path:
        """Checks everything but the rate. `then` may use the connection afterwards."""
        path = Path(self.name, host, mine.name, theirs.name, theirs.address)
        path.wanted_packet_bytes = min(mine.mtu, theirs.mtu)
        connection = self._connect_to_all(path, mine, theirs)
        if connection is None:
            return path
        with connection:
            try:
                path.key = self._challenge(connection)
                if path.key in (keys.EQUAL, keys.NONE):
                    self._talk(connection, path, mine, theirs)
                    if then is not None:
                        then(connection, path)
            except PeerError as error:
                path.problem = str(error)
            except (KeyError, TypeError, ValueError):
                path.problem = "sends a message that this version does not understand"
        return path

    def reach(self, mine: Rail, host: str, theirs: Rail) -> Path:
        """Checks only whether a connection to the other rail can be made, and whether its listener has the key.

        A listener that accepts and is too busy to answer counts as reached.
        """
        path = Path(self.name, host, mine.name, theirs.name, theirs.address)
        connection = self._connect_to_all(path, mine, theirs)
        if connection is None:
            return path
        with connection, contextlib.suppress(PeerError):
            try:
                path.key = self._challenge(connection)
            except keys.StrangerError:
                path.key = keys.DIFFERENT
        if path.key not in ("", keys.EQUAL, keys.NONE):
            path.problem = "has an address that another host has, too"
        return path

    def measure(self, path: Path, mine: Rail, theirs: Rail, seconds: float, *, sends: bool) -> float | None:
        """Measures bits per second to the other rail (`sends`) or from it, over a port that `look` found open.

        Returns None if the measurement fails.
        """
        port = next((state.port for state in path.ports if not state.problem), None)
        if port is None or path.round_trip_s is None:
            return None
        with (
            contextlib.suppress(KeyError, PeerError, TypeError, ValueError),
            self._connect(mine, theirs, port) as connection,
        ):
            if self._challenge(connection) not in (keys.EQUAL, keys.NONE):
                return None
            connection.send_json({"do": "receive" if sends else "send", "seconds": seconds})
            if not sends:
                return receive_stream(connection, seconds)
            send_stream(connection, seconds)
            connection.deadline = self._until(_TALK_S)
            return number(connection.receive_json()["bits_per_second"])
        return None

    def _until(self, seconds: float) -> float:
        return min(time.monotonic() + seconds, self._deadline)

    def _connect(self, mine: Rail, theirs: Rail, port: int) -> Connection:
        return connect(theirs.address, port, self._until(_CONNECT_S), mine.address, mine.device)

    def _connect_to_all(self, path: Path, mine: Rail, theirs: Rail) -> Connection | None:
        """Tries all ports at once, records the state of each, and keeps one connection."""

        def attempt(port: int) -> Connection | PortState:
            try:
                return self._connect(mine, theirs, port)
            except PeerError as error:
                return PortState(port, str(error))

        attempts = [functools.partial(attempt, port) for port in theirs.tcp_ports]
        found = [
            each or PortState(port, "does not answer in time")
            for port, each in zip(theirs.tcp_ports, all_at_once(attempts, self._deadline), strict=True)
        ]
        made = [each for each in found if isinstance(each, Connection)]
        for port, each in zip(theirs.tcp_ports, found, strict=True):
            path.ports.append(PortState(port) if isinstance(each, Connection) else each)
        for spare in made[1:]:
            spare.socket.close()
        if not made:
            path.problem = next((state.problem for state in path.ports), "offers no port")
        return made[0] if made else None

    def _challenge(self, connection: Connection) -> str:
        connection.deadline = self._until(_HANDSHAKE_S)
        return keys.challenge(connection, self._key)

    def _talk(self, connection: Connection, path: Path, mine: Rail, theirs: Rail) -> None:
        connection.deadline = self._until(_TALK_S)
        path.round_trip_s, path.clock_ahead_s = _round_trip(connection)
        token = bytes.fromhex(text(connection.ask({"do": "token"})["token"]))
        path.packet_bytes = largest_packet(mine, theirs, token, path.round_trip_s, connection.deadline)
        connection.deadline = self._until(_TALK_S)


def _round_trip(connection: Connection) -> tuple[float, float]:
    """The shortest of some round trips in seconds, and by how many seconds the other host's clock is ahead."""
    found = []
    for _ in range(_ROUND_TRIPS):
        sent, started = time.time(), time.monotonic()
        there = number(connection.ask({"do": "time"})["time"])
        taken = time.monotonic() - started
        found.append((taken, there - (sent + taken / 2)))
        if sum(each for each, _ in found) > _HANDSHAKE_S / 2:
            break
    return min(found)
