# SPDX-License-Identifier: Apache-2.0
"""The findings of `agspeed run --check`: sentences with remedies, from what the hosts have said. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agspeed.launch.check.facts import Facts, Interface

__all__ = ["Seen", "findings", "interfaces_of", "versions"]

_LOOPBACK = "lo"
_LEAST_SHARED_MEMORY = 64 << 20
_LEAST_DESCRIPTORS = 1024
_CLOCK_S = 1.0


@dataclass(frozen=True)
class Seen:
    """A host that has answered.

    Attributes:
        ahead_s: how much its clock is ahead of the launcher's, at least; negative if it is behind.
    """

    name: str
    facts: Facts
    ahead_s: float


def findings(seen: Sequence[Seen], num_ranks: int, wanted: Sequence[str]) -> list[str]:
    """Returns a sentence for each thing to correct.

    Args:
        num_ranks: of the job.
        wanted: the names that --network-interfaces gives; none for all interfaces.
    """
    checks = [_clock, _shared_memory]
    found = versions(seen)
    found += [sentence for check in checks for each in seen for sentence in check(seen[0], each)]
    found += [sentence for each in seen for sentence in _interfaces(each, len(seen), wanted)]
    return found + [sentence for each in seen for sentence in _descriptors(each, num_ranks)]


def versions(seen: Sequence[Seen]) -> list[str]:
    """Returns a sentence for each host with other versions than the first one, or without torch."""
    return [sentence for each in seen for sentence in _versions(seen[0], each)]


def interfaces_of(facts: Facts) -> list[Interface]:
    """Returns the interfaces by which other hosts can be reached."""
    return [each for each in facts.interfaces if each.name != _LOOPBACK and each.is_up]


def _versions(first: Seen, host: Seen) -> Iterator[str]:
    own, others = host.facts, first.facts
    if own.python.split(".")[:2] != others.python.split(".")[:2]:
        yield (
            f"host {host.name} has Python {own.python}, and host {first.name} has {others.python}; name an interpreter "
            "of the same version with --remote-python."
        )
    if not own.torch:
        yield f"host {host.name} has no torch; run pip install torch there."
    elif others.torch and own.torch != others.torch:
        yield (
            f"host {host.name} has torch {own.torch}, and host {first.name} has {others.torch}; install one version on "
            "all hosts."
        )


def _clock(first: Seen, host: Seen) -> Iterator[str]:
    if abs(host.ahead_s) > _CLOCK_S:
        how = "ahead of" if host.ahead_s > 0 else "behind"
        yield (
            f"the clock of host {host.name} is {abs(host.ahead_s):.1f} s {how} this host's; run a time service there, "
            "such as chrony."
        )


def _shared_memory(first: Seen, host: Seen) -> Iterator[str]:
    free = host.facts.shared_memory
    if free < 0:
        yield f"host {host.name} has no /dev/shm; run mount -t tmpfs -o size=1g tmpfs /dev/shm there."
    elif free < _LEAST_SHARED_MEMORY:
        yield (
            f"host {host.name} has {free >> 20} MiB free in /dev/shm; remove files there, or start its container with "
            "docker run --shm-size=1g."
        )


def _interfaces(host: Seen, num_hosts: int, wanted: Sequence[str]) -> Iterator[str]:
    usable = interfaces_of(host.facts)
    if num_hosts > 1 and not usable:
        yield f"host {host.name} has no network interface that is up; see ip link there."
    names = [each.name for each in host.facts.interfaces if each.is_up]
    begins = [name.removeprefix("=") for name in wanted if not name.startswith("^")]
    missing = [begin for begin in begins if not any(name.startswith(begin) for name in names)]
    if missing:
        yield (
            f"host {host.name} has no interface {', '.join(missing)} that is up; correct --network-interfaces, or see "
            "ip link there."
        )


def _descriptors(host: Seen, num_ranks: int) -> Iterator[str]:
    """A process raises its own limit, up to the highest one. The number is comm's (`comm/io/fd_limit.cpp`)."""
    num_rails = len(interfaces_of(host.facts))
    needed = max(_LEAST_DESCRIPTORS, 2 * (num_ranks - 1) * (2 * num_rails + 4))
    if 0 <= host.facts.most_descriptors < needed:
        yield (
            f"host {host.name} limits a process to {host.facts.most_descriptors} descriptors, and a rank needs "
            f"{needed}; raise the limit nofile in /etc/security/limits.conf there."
        )
