# SPDX-License-Identifier: Apache-2.0
"""Finds the faults of single paths, each with a kind: the first step from a survey to sentences. Pure functions."""

from __future__ import annotations

import ipaddress
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agspeed.netprobe import keys
from agspeed.netprobe.model import HostRecord, Path, Rail, Survey, pair_rails

__all__ = ["CUT", "FAILS", "KEY", "PACKETS", "PORT", "SLOW", "TALK", "UNPAIRED", "Issue", "is_judged", "issues_of"]

CUT, PORT, TALK, KEY, PACKETS, UNPAIRED = "cut", "port", "talk", "key", "packets", "unpaired"
SLOW, DELAY, MTU = "slow", "delay", "mtu"
FAILS = (CUT, PORT, TALK, KEY, PACKETS, UNPAIRED)  # with the other kinds the path works, but worse

_SLOW_SHARE = 0.5  # of the median of all paths between rails of the same name
_LEAST_TO_COMPARE = 3
_LONG_DELAY_S = 0.05


@dataclass(frozen=True)
class Issue:
    """A fault between two hosts, in the direction from source to destination.

    `detail` continues a sentence that begins with "rail on host to host: ".
    """

    kind: str
    source: str
    destination: str
    rail: str  # of the source
    remote_rail: str
    detail: str

    @property
    def ends(self) -> tuple[tuple[str, str], ...]:
        """(host, rail) of both ends, in an order that does not depend on the direction."""
        return tuple(sorted([(self.source, self.rail), (self.destination, self.remote_rail)]))


def issues_of(survey: Survey) -> list[Issue]:
    """All faults between the hosts of a survey."""
    hosts = {host.name: host for host in survey.hosts}
    found = [_without_partner(hosts, path) or issue for path in survey.paths for issue in _of_path(path)]
    found += [issue for mine in survey.hosts for theirs in survey.hosts for issue in _unpaired(survey, mine, theirs)]
    return [*found, *_different_mtus(survey), *_slow_ones(survey)]


def is_judged(path: Path, kind: str) -> bool:
    """Whether the check of the path went far enough to know if it has an issue of this kind."""
    if kind in (PACKETS, SLOW, DELAY):
        return path.round_trip_s is not None
    return path.is_open or kind in (CUT, MTU, UNPAIRED)


def _of_path(path: Path) -> Iterator[Issue]:
    def issue(kind: str, detail: str) -> Issue:
        return Issue(kind, path.source, path.destination, path.rail, path.remote_rail, detail)

    if not path.is_open:
        yield issue(CUT, f"{path.remote_address} {path.problem}")
        return
    for state in path.ports:
        if state.problem:
            answering = next(each.port for each in path.ports if not each.problem)
            detail = f"port {state.port} of {path.remote_address} {state.problem}, though port {answering} answers"
            yield issue(PORT, detail)
    if path.key not in ("", keys.EQUAL, keys.NONE):
        yield issue(KEY, key_sentence(path.key))
    elif path.problem:
        yield issue(TALK, f"{path.remote_address} {path.problem}")
    if path.packet_bytes is not None and path.packet_bytes < path.wanted_packet_bytes:
        yield issue(
            PACKETS,
            f"packets of more than {path.packet_bytes} bytes do not arrive, "
            f"and the interfaces send up to {path.wanted_packet_bytes}",
        )
    if path.round_trip_s is not None and path.round_trip_s > _LONG_DELAY_S:
        yield issue(DELAY, f"answers take {1e3 * path.round_trip_s:.0f} ms")


def key_sentence(equality: str) -> str:
    return "the job keys are different" if equality == keys.DIFFERENT else f"the job keys are different: {equality}"


def _unpaired(survey: Survey, mine: HostRecord, theirs: HostRecord) -> Iterator[Issue]:
    if mine is theirs or not any({mine.name, theirs.name} == {p.source, p.destination} for p in survey.paths):
        return
    for rail, other in zip(mine.rails, pair_rails(mine.rails, theirs.rails), strict=True):
        if other is not None:
            continue
        yield _missing(mine, rail, theirs)


def _without_partner(hosts: Mapping[str, HostRecord], path: Path) -> Issue | None:
    """The issue of a rail that has no partner in its own network, if the path to its substitute is not open."""
    mine, theirs = hosts[path.source], hosts[path.destination]
    rail = next(rail for rail in mine.rails if rail.name == path.rail)
    is_neighbour = ipaddress.ip_address(path.remote_address) in rail.network
    return None if path.is_open or is_neighbour else _missing(mine, rail, theirs)


def _missing(mine: HostRecord, rail: Rail, theirs: HostRecord) -> Issue:
    why = theirs.left_out.get(rail.name)
    detail = f"{rail.network} has no rail of {theirs.name}" + (f": {rail.name} there: {why}" if why else "")
    return Issue(UNPAIRED, mine.name, theirs.name, rail.name, rail.name, detail)


def _different_mtus(survey: Survey) -> Iterator[Issue]:
    rails = {(host.name, rail.name): rail for host in survey.hosts for rail in host.rails}
    for path in survey.paths:
        mine, theirs = (rails[path.source, path.rail], rails[path.destination, path.remote_rail])
        if mine.mtu < theirs.mtu:
            detail = f"the MTU is {mine.mtu} on {path.source} and {theirs.mtu} on {path.destination}"
            yield Issue(MTU, path.source, path.destination, path.rail, path.remote_rail, detail)


def _slow_ones(survey: Survey) -> Iterator[Issue]:
    for name in {path.rail for path in survey.paths}:
        measured = [path for path in survey.paths if path.rail == name and path.bits_per_second is not None]
        if len(measured) < _LEAST_TO_COMPARE:
            continue
        usual = statistics.median(path.bits_per_second or 0.0 for path in measured)
        for path in measured:
            rate = path.bits_per_second or 0.0
            is_explained = path.packet_bytes is not None and path.packet_bytes < path.wanted_packet_bytes
            if rate < _SLOW_SHARE * usual and not is_explained:
                detail = f"{rate / 1e6:.0f} Mbit/s, and {usual / 1e6:.0f} are usual on {name}"
                yield Issue(SLOW, path.source, path.destination, path.rail, path.remote_rail, detail)
