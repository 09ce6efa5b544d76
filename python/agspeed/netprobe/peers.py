# SPDX-License-Identifier: Apache-2.0
"""Checks the paths from this host to listening peers, and back: `agspeed doctor --peer`, and `--net` under torchrun."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Sequence

from agspeed.netprobe import keys
from agspeed.netprobe.listener import Listener
from agspeed.netprobe.model import HostRecord, Path, Rail, Survey, pair_rails
from agspeed.netprobe.parallel import all_at_once
from agspeed.netprobe.probe import Prober
from agspeed.netprobe.wire import Connection, PeerError, connect

__all__ = ["LOOK_S", "STREAM_S", "look_at", "measure_to", "reach", "routes_to", "survey_peers"]

LOOK_S = 9.0  # for the checks of all paths, even if many fail
STREAM_S = 0.4
_RECORD_S = 4.0
_MEASURE_S = 4.0  # for all paths to one peer; each takes a handshake and a stream
_MOST_AT_ONCE = 256
_SPARE_S = 0.5  # a peer ends its check of the way back this long before this host stops waiting

_START_LISTENER = (
    "on that host run `agspeed doctor --listen` and keep it running; then check the name, the port and the firewall"
)

Route = tuple[Rail, HostRecord, Rail]  # own rail, peer, its rail


def survey_peers(peers: Sequence[str], host: HostRecord, key: bytes, port: int) -> Survey:
    """Checks the paths between this host and each peer, both ways. Takes at most LOOK_S, plus a second per peer."""
    deadline = time.monotonic() + LOOK_S
    with Listener(host, key) as listener:
        survey = Survey([listener.record], [], _START_LISTENER)
        calls = [
            functools.partial(_record_of, peer, port, key, min(deadline, time.monotonic() + _RECORD_S))
            for peer in peers
        ]
        for peer, found in zip(peers, all_at_once(calls, deadline), strict=True):
            _note(survey, peer, found)
        prober = Prober(listener.record.name, key, deadline)
        routes = [route for other in survey.hosts[1:] for route in routes_to(listener.record, other)]
        for there, back in look_at(routes, prober, deadline, and_back=True):
            survey.paths += [there, *back]
        for other in survey.hosts[1:]:
            of_peer = [route for route in routes if route[1] is other]
            _measure_both_ways(survey, of_peer, Prober(listener.record.name, key, time.monotonic() + _MEASURE_S))
    return survey


def look_at(
    routes: Sequence[Route], prober: Prober, deadline: float, *, and_back: bool
) -> list[tuple[Path, list[Path]]]:
    """Checks all routes at once. With `and_back`, each peer also checks the way back, if the route is open.

    Returns: for each route, the path there, and a list with the path back or nothing.
    """
    calls = [functools.partial(_look, route, prober, deadline, and_back) for route in routes]
    found = all_at_once(calls, deadline + _SPARE_S)
    return [each or (_late(route, prober), []) for each, route in zip(found, routes, strict=True)]


def reach(routes: Sequence[Route], prober: Prober, deadline: float) -> list[Path]:
    """Checks only whether routes carry connections (`Prober.reach`), many at once.

    Returns: the paths, in the order of the routes. Routes at the end are left out if time is over before their turn.
    """
    paths: list[Path] = []
    for begin in range(0, len(routes), _MOST_AT_ONCE):
        if begin and time.monotonic() >= deadline:
            break
        some = routes[begin : begin + _MOST_AT_ONCE]
        calls = [functools.partial(prober.reach, mine, peer.name, theirs) for mine, peer, theirs in some]
        found = all_at_once(calls, deadline + _SPARE_S)
        paths += [each or _late(route, prober) for each, route in zip(found, some, strict=True)]
    return paths


def measure_to(paths: Sequence[Path], routes: Sequence[Route], prober: Prober, *, sends: bool) -> list[float | None]:
    """Measures all routes at once, to the peers (`sends`) or from them. paths: the results of `look_at`, by route."""
    calls = [
        functools.partial(prober.measure, path, mine, theirs, STREAM_S, sends=sends)
        for path, (mine, _, theirs) in zip(paths, routes, strict=True)
    ]
    return all_at_once(calls, time.monotonic() + _MEASURE_S)


def _record_of(peer: str, port: int, key: bytes, deadline: float) -> HostRecord | str | PeerError:
    """Returns the peer's record, or how its key differs, or why it does not answer."""
    try:
        connection = _first_connection(peer, port, deadline)
        with connection:
            equality = keys.challenge(connection, key)
            if equality not in (keys.EQUAL, keys.NONE):
                return equality
            return HostRecord.from_json(connection.ask({"do": "describe"}))
    except PeerError as error:
        return error
    except (KeyError, TypeError, ValueError):
        return PeerError("describes itself in a way that this version does not understand")


def _first_connection(peer: str, port: int, deadline: float) -> Connection:
    """Connects to the first of the peer's addresses that accepts."""
    try:
        found = socket.getaddrinfo(peer, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise PeerError("is not a name or address that this host knows") from None
    addresses = list(dict.fromkeys(str(row[4][0]) for row in found))

    def attempt(address: str) -> Connection | PeerError:
        try:
            return connect(address, port, deadline)
        except PeerError as error:
            return error

    attempts = all_at_once([functools.partial(attempt, address) for address in addresses], deadline + _SPARE_S)
    made = [each for each in attempts if isinstance(each, Connection)]
    if not made:
        failures = [each for each in attempts if isinstance(each, PeerError)]
        raise failures[0] if failures else PeerError("is silent: packets are dropped")
    for spare in made[1:]:
        spare.socket.close()
    made[0].deadline = deadline
    return made[0]


def _note(survey: Survey, peer: str, found: HostRecord | str | PeerError | None) -> None:
    if isinstance(found, HostRecord):
        taken = {host.name for host in survey.hosts}
        name = f"{found.name} ({peer})" if found.name in taken else found.name
        survey.hosts.append(HostRecord(name, found.rails, found.left_out))
    elif isinstance(found, str):
        survey.keys[survey.hosts[0].name, peer] = found
    else:
        survey.silent[peer] = str(found or PeerError("does not answer in time"))


def routes_to(mine: HostRecord, theirs: HostRecord) -> list[Route]:
    pairs = zip(mine.rails, pair_rails(mine.rails, theirs.rails), strict=True)
    return [(rail, theirs, other) for rail, other in pairs if other is not None]


def _look(route: Route, prober: Prober, deadline: float, and_back: bool) -> tuple[Path, list[Path]]:
    mine, peer, theirs = route
    back: list[Path] = []

    def look_back(connection: Connection, path: Path) -> None:
        left = deadline - time.monotonic() - _SPARE_S
        connection.deadline = deadline
        request = {"do": "look back", "host": path.source, "rail": mine.to_json(), "seconds": left}
        answer = Path.from_json(connection.ask(request))
        answer.source, answer.destination = peer.name, path.source
        answer.rail, answer.remote_rail = theirs.name, mine.name
        back.append(answer)

    there = prober.look(mine, peer.name, theirs, look_back if and_back else None)
    return there, back


def _late(route: Route, prober: Prober) -> Path:
    mine, peer, theirs = route
    path = Path(prober.name, peer.name, mine.name, theirs.name, theirs.address)
    path.problem = "does not answer in time"
    return path


def _measure_both_ways(survey: Survey, routes: Sequence[Route], prober: Prober) -> None:
    looked_at = {(path.source, path.destination, path.rail): path for path in survey.paths}
    there = [looked_at[prober.name, peer.name, mine.name] for mine, peer, _ in routes]
    back = [looked_at.get((peer.name, prober.name, theirs.name)) for _, peer, theirs in routes]
    for path, rate in zip(there, measure_to(there, routes, prober, sends=True), strict=True):
        path.bits_per_second = rate
    for seen, rate in zip(back, measure_to(there, routes, prober, sends=False), strict=True):
        if seen is not None:
            seen.bits_per_second = rate
