# SPDX-License-Identifier: Apache-2.0
"""The answer of a rank, as values that were checked.

`comm/world/inspection.cpp` writes the document. A process of this user may send any bytes instead, so `parsed` checks
the type and the range of everything that it returns. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agspeed import bounded_json

__all__ = ["Group", "Operation", "Peer", "Rail", "Rank", "Route", "parsed"]

KIND, VERSION = "agspeed.inspection", 1
_LONGEST_TEXT = 4096
_MOST = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class Operation:
    """An operation that is not done."""

    call: str
    """For example "all_reduce(1024 x f32, sum)"; empty if this rank does not know it."""
    name: str
    """The name by which ranks match it; empty: they match it by its sequence or tag."""
    sequence: int | None
    seconds: float
    num_bytes: int
    num_moved: int
    blocked_by: str
    """Why it moves no data yet; empty: it does."""
    awaited: tuple[int, ...]
    """The ranks of the job that it waits for."""

    @property
    def label(self) -> str:
        """Names the operation in a sentence."""
        what = f"'{self.name}'" if self.name else self.call
        return f"operation {self.sequence}, {what}" if self.sequence is not None else what


@dataclass(frozen=True)
class Group:
    name: str
    is_named: bool
    """Ranks match its operations by name."""
    ranks: tuple[int, ...]
    num_calls: int
    """The sequence of the last collective that this rank has started."""
    last_call: str
    failure: str
    num_operations: int
    operations: tuple[Operation, ...]
    not_started: tuple[Operation, ...]
    """Operations that other ranks wait for and this rank has not started, as far as it knows."""


@dataclass(frozen=True)
class Route:
    """One rail's way to a peer."""

    is_up: bool
    bytes_in_flight: int


@dataclass(frozen=True)
class Peer:
    """How a rank reaches another rank that it waits for."""

    rank: int
    silent_s: float
    shares_memory: bool
    routes: tuple[Route, ...]
    unreached_s: float
    failure: str
    is_lost: bool


@dataclass(frozen=True)
class Rail:
    interface: str
    address: str
    is_link_up: bool
    bytes_per_second: float
    bytes_sent: int
    bytes_received: int
    failovers: int
    stalls: int


@dataclass(frozen=True)
class Finished:
    group: str
    call: str
    sequence: int
    seconds: float


@dataclass(frozen=True)
class Rank:
    process: int
    host: str
    job: str
    rank: int
    world_size: int
    state: str
    """joined, joining, or busy: its engine did not answer."""
    seconds: float
    """For "joining": since when it waits."""
    stack: tuple[str, ...]
    """The frames of its main thread, the innermost first, like "train.py:12 in step"; empty: not known."""
    groups: tuple[Group, ...]
    peers: tuple[Peer, ...]
    rails: tuple[Rail, ...]
    last_finished: Finished | None


def parsed(document: bytes) -> Rank:
    """Parses a document. Raises: ValueError if it is not one of this version."""
    found = bounded_json.loads(document)
    if not isinstance(found, dict) or (found.get("kind"), found.get("version")) != (KIND, VERSION):
        raise ValueError("it is no document of this version of agspeed")
    try:
        return _rank(found)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not complete: {error}") from None


def _rank(found: Mapping[str, Any]) -> Rank:
    state, size = _text(found["state"]), _count(found["world_size"])
    if state not in ("joined", "joining", "busy"):
        raise ValueError(f"its state is {state!r}")
    last = found.get("last_finished")
    return Rank(
        process=_count(found["process"], 1 << 31),
        host=_text(found["host"]),
        job=_text(found["job"]),
        rank=_count(found["rank"], size - 1),
        world_size=size,
        state=state,
        seconds=_seconds(found.get("seconds", 0)),
        stack=_each(found["stack"], _text),
        groups=_each(found.get("groups", []), _group),
        peers=_each(found.get("peers", []), _peer),
        rails=_each(found.get("rails", []), _rail),
        last_finished=None if last is None else _finished(last),
    )


def _group(found: Mapping[str, Any]) -> Group:
    return Group(
        name=_text(found["name"]),
        is_named=_flag(found["is_named"]),
        ranks=_each(found["ranks"], _count),
        num_calls=_count(found["calls"], 1 << 63),
        last_call=_text(found["last_call"]),
        failure=_text(found["failure"]),
        num_operations=_count(found["num_operations"]),
        operations=_each(found["operations"], _operation),
        not_started=_each(found["not_started"], _operation),
    )


def _operation(found: Mapping[str, Any]) -> Operation:
    sequence = found.get("sequence")
    return Operation(
        call=_text(found["call"]),
        name=_text(found["name"]),
        sequence=None if sequence is None else _count(sequence, 1 << 63),
        seconds=_seconds(found["seconds"]),
        num_bytes=_count(found["bytes"], 1 << 63),
        num_moved=_count(found["bytes_moved"], 1 << 63),
        blocked_by=_text(found["blocked_by"]),
        awaited=_each(found["waits_for"], _count),
    )


def _peer(found: Mapping[str, Any]) -> Peer:
    return Peer(
        rank=_count(found["rank"]),
        silent_s=_seconds(found["silent_s"]),
        shares_memory=_flag(found["shared_memory"]),
        routes=_each(
            found["rails"],
            lambda rail: Route(_flag(rail["is_up"]), _count(rail["bytes_in_flight"], 1 << 63)),
        ),
        unreached_s=_seconds(found.get("unreached_s", 0)),
        failure=_text(found.get("failure", "")),
        is_lost=_flag(found.get("is_lost", False)),
    )


def _rail(found: Mapping[str, Any]) -> Rail:
    return Rail(
        interface=_text(found["interface"]),
        address=_text(found["address"]),
        is_link_up=_flag(found["is_link_up"]),
        bytes_per_second=_seconds(found["bytes_per_second"]),
        bytes_sent=_count(found["bytes_sent"], 1 << 63),
        bytes_received=_count(found["bytes_received"], 1 << 63),
        failovers=_count(found["failovers"], 1 << 63),
        stalls=_count(found["stalls"], 1 << 63),
    )


def _finished(found: Mapping[str, Any]) -> Finished:
    return Finished(
        _text(found["group"]), _text(found["call"]), _count(found["sequence"], 1 << 63), _seconds(found["seconds"])
    )


def _each(found: Any, parse: Callable[[Any], T]) -> tuple[T, ...]:
    if not isinstance(found, list):
        raise TypeError(f"{found!r:.40} is not a list")
    return tuple(parse(item) for item in found)


def _text(found: Any) -> str:
    if not isinstance(found, str) or len(found) > _LONGEST_TEXT:
        raise TypeError(f"{found!r:.40} is not text")
    return found


def _flag(found: Any) -> bool:
    if not isinstance(found, bool):
        raise TypeError(f"{found!r:.40} is neither true nor false")
    return found


def _count(found: Any, most: int = _MOST) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= most:
        raise TypeError(f"{found!r:.40} is not a number from 0 to {most}")
    return found


def _seconds(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float)) or found < 0:
        raise TypeError(f"{found!r:.40} is not a positive number")
    return float(found)
