# SPDX-License-Identifier: Apache-2.0
"""Which interfaces a job leaves out, because they do not reach the other hosts, and the sentences about them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agspeed.netprobe import HostRecord
from agspeed.netprobe.peers import routes_to

__all__ = ["Decision", "Failure", "decide"]

_End = tuple[str, str]  # a host and its interface


@dataclass(frozen=True)
class Failure:
    """A host has not reached another one over a pair of interfaces. problem: as in `Path`."""

    source: str
    rail: str
    destination: str
    remote_rail: str
    problem: str

    @property
    def ends(self) -> tuple[_End, _End]:
        return (self.source, self.rail), (self.destination, self.remote_rail)


@dataclass(frozen=True)
class Decision:
    """
    Attributes:
        kept: the interfaces of the hosts that leave some out.
        sentences: for the user, one for each interface that is left out, and for each host that is not reached.
    """

    kept: Mapping[str, Sequence[str]]
    sentences: Sequence[str]


def decide(hosts: Sequence[HostRecord], failures: Sequence[Failure], fixed: Collection[str] = ()) -> Decision:
    """Leaves out interfaces that fail with more than half of the hosts that they should reach. If single pairs still
    fail, it leaves out one interface of each. A host keeps all interfaces if none would be left: then its ranks try.

    fixed: the hosts that keep their interfaces, because ranks run there. No failure is between two of them.
    """
    out = {end for end in _broken(_partners(hosts), failures) if end[0] not in fixed}
    while left := [each for each in failures if not out.intersection(each.ends)]:
        counts = {end: found for end, found in _hosts_by_end(left).items() if end[0] not in fixed}
        out.add(max(counts, key=lambda end: (len(counts[end]), end)))
    kept, sentences = {}, []
    for host in hosts:
        names = [rail.name for rail in host.rails if (host.name, rail.name) in out]
        if names and len(names) == len(host.rails):
            sentences.append(_unreached(host, failures))
        elif names:
            kept[host.name] = [rail.name for rail in host.rails if rail.name not in names]
            sentences += [_left_out((host.name, name), failures) for name in names]
    return Decision(kept, sentences)


def _partners(hosts: Sequence[HostRecord]) -> Mapping[_End, set[str]]:
    """Returns, for each interface, the hosts that it is paired with."""
    found: dict[_End, set[str]] = defaultdict(set)
    for host in hosts:
        for other in hosts:
            for rail, _, _ in routes_to(host, other) if other is not host else ():
                found[host.name, rail.name].add(other.name)
    return found


def _broken(partners: Mapping[_End, set[str]], failures: Iterable[Failure]) -> set[_End]:
    counts = _hosts_by_end(failures)
    return {end for end, hosts in counts.items() if 2 * len(hosts) > len(partners.get(end, ()))}


def _hosts_by_end(failures: Iterable[Failure]) -> Mapping[_End, set[str]]:
    found: dict[_End, set[str]] = defaultdict(set)
    for each in failures:
        mine, theirs = each.ends
        found[mine].add(each.destination)
        found[theirs].add(each.source)
    return found


def _left_out(end: _End, failures: Sequence[Failure]) -> str:
    host, rail = end
    begin = f"interface {rail} of host {host} is left out:"
    for each in failures:
        if each.ends[0] == end:
            return f"{begin} over it, host {each.destination} {each.problem}"
    (first, *_) = [each for each in failures if each.ends[1] == end]
    return f"{begin} from host {first.source}, it {first.problem}"


def _unreached(host: HostRecord, failures: Sequence[Failure]) -> str:
    (first, *_) = [each for each in failures if host.name in (each.source, each.destination)]
    return (
        f"no interface of host {host.name} reaches the other hosts, so its ranks try all of them: over {first.rail} of "
        f"host {first.source}, host {first.destination} {first.problem}; `agspeed doctor --net` finds more"
    )
