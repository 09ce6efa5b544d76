# SPDX-License-Identifier: Apache-2.0
"""Value types: hosts' descriptions of themselves, and the results for the paths between them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["HostRecord", "Path", "PortState", "Rail", "Survey", "number", "pair_rails", "text"]

_MOST_RAILS = 64  # as in a job
_MOST_PORTS = 16
_MOST_CHARACTERS = 200
_MOST_PACKET_BYTES = 1 << 20
_MOST_NUMBER = 1e18


@dataclass(frozen=True)
class Rail:
    """A host's interface that carries jobs.

    `tcp_ports`: the ports at which its `Listener` listens; `udp_port`: the port of its echo.
    """

    name: str
    address: str
    prefix_bits: int
    mtu: int
    tcp_ports: tuple[int, ...] = ()
    udp_port: int = 0

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return ipaddress.ip_network(f"{self.address}/{self.prefix_bits}", strict=False)

    @property
    def device(self) -> str:
        """The interface to bind sockets to. "" for loopback addresses, whose traffic may take other interfaces."""
        return "" if ipaddress.ip_address(self.address).is_loopback else self.name

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Rail:
        """Raises: ValueError, TypeError or KeyError for anything that is not a rail."""
        ports = tuple(map(_port, found["tcp_ports"][:_MOST_PORTS]))
        prefix_bits, mtu = _count(found["prefix_bits"], 128), _count(found["mtu"], 1 << 20)
        rail = cls(text(found["name"]), text(found["address"]), prefix_bits, mtu, ports, _port(found["udp_port"]))
        if rail.network.prefixlen != prefix_bits or mtu == 0:
            raise ValueError(f"an MTU of {mtu}")
        return rail


@dataclass(frozen=True)
class HostRecord:
    """A host's description of itself. `left_out`: its interfaces that carry no job, each with the reason."""

    name: str
    rails: tuple[Rail, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> HostRecord:
        """Raises: ValueError, TypeError or KeyError for anything that is not a host's record."""
        rails = tuple(map(Rail.from_json, found["rails"][:_MOST_RAILS]))
        left_out = list(dict(found["left_out"]).items())[:_MOST_RAILS]
        return cls(text(found["name"]), rails, {text(key): text(why) for key, why in left_out})


@dataclass(frozen=True)
class PortState:
    """A TCP port of a rail. `problem`: the rest of a sentence about it; empty if a connection succeeds."""

    port: int
    problem: str = ""


@dataclass
class Path:
    """The path from one host's rail to another's, as the first host sees it. None and empty values are unknown.

    `problem`: why the check of this path ended early, as the rest of a sentence about the other rail.
    """

    source: str
    destination: str
    rail: str
    remote_rail: str
    remote_address: str
    ports: list[PortState] = field(default_factory=list)
    key: str = ""
    round_trip_s: float | None = None
    clock_ahead_s: float | None = None  # of the other host
    packet_bytes: int | None = None  # the largest that arrives
    wanted_packet_bytes: int = 0  # the largest that both interfaces allow
    bits_per_second: float | None = None
    problem: str = ""

    @property
    def is_open(self) -> bool:
        """Whether any port of the other rail answers."""
        return any(not state.problem for state in self.ports)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Path:
        """Raises: ValueError, TypeError or KeyError for anything that is not a path."""
        ports = [PortState(_port(row["port"]), text(row["problem"])) for row in found["ports"][:_MOST_PORTS]]
        texts = {name: text(found[name]) for name in ("source", "destination", "rail", "remote_rail", "key", "problem")}
        texts["remote_address"] = str(ipaddress.ip_address(text(found["remote_address"])))
        measured = {name: found[name] for name in ("round_trip_s", "clock_ahead_s", "bits_per_second")}
        numbers = {name: None if value is None else number(value) for name, value in measured.items()}
        wanted = _count(found["wanted_packet_bytes"], _MOST_PACKET_BYTES)
        arrived = None if found["packet_bytes"] is None else _count(found["packet_bytes"], _MOST_PACKET_BYTES)
        sizes = {"packet_bytes": arrived, "wanted_packet_bytes": wanted}
        return cls(**texts, **numbers, **sizes, ports=ports)  # type: ignore[arg-type]


@dataclass
class Survey:
    """All results of a doctor. `silent`: hosts that did not answer, with the rest of a sentence about each.

    `how_to_join`: the remedy for silent hosts.
    """

    hosts: list[HostRecord]
    paths: list[Path]
    how_to_join: str
    silent: dict[str, str] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)  # how keys differ, for hosts not checked further


def text(found: Any) -> str:
    """The printable part of a text that another host sent, safe to show. Raises: TypeError."""
    if not isinstance(found, str):
        raise TypeError(f"{found!r} is not text")
    return "".join(filter(str.isprintable, found))[:_MOST_CHARACTERS]


def _count(found: Any, most: int) -> int:
    if type(found) is not int or not 0 <= found <= most:
        raise ValueError(f"{found!r} is not a number up to {most}")
    return found


def _port(found: Any) -> int:
    return _count(found, (1 << 16) - 1)


def number(found: Any) -> float:
    """Checks a number that another host sent. Raises: ValueError."""
    if type(found) not in (int, float) or not abs(found) < _MOST_NUMBER:
        raise ValueError(f"{found!r} is not a number")
    return float(found)


def pair_rails(mine: Sequence[Rail], theirs: Sequence[Rail]) -> list[Rail | None]:
    """Returns, for each of `mine`, the rail of `theirs` that jobs pair it with; None if there is none.

    It mirrors pairRails in comm/rendezvous/peer_record.h.
    """
    pairs: list[Rail | None] = [None] * len(mine)
    for needs_same_network in (True, False):
        for index, rail in enumerate(mine):
            for candidate in [*theirs[index:], *theirs[:index]] if pairs[index] is None else []:
                if candidate not in pairs and _fits(rail, candidate, needs_same_network, mine, theirs):
                    pairs[index] = candidate
                    break
    return pairs


def _fits(rail: Rail, candidate: Rail, needs_same_network: bool, mine: Sequence[Rail], theirs: Sequence[Rail]) -> bool:
    if needs_same_network:
        return _holds(rail, candidate)
    is_mine_shared = any(_holds(rail, other) for other in theirs)
    is_theirs_shared = any(_holds(candidate, other) for other in mine)
    is_same_kind = rail.network.version == candidate.network.version
    return is_same_kind and not (is_mine_shared and is_theirs_shared)


def _holds(rail: Rail, other: Rail) -> bool:
    """Whether `other` has an address in the rail's network."""
    return ipaddress.ip_address(other.address) in rail.network
