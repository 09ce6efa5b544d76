# SPDX-License-Identifier: Apache-2.0
"""Asks the hosts of a job what they have, and prints a table and findings.

Threading: the caller's thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agspeed.errors import AgspeedError
from agspeed.launch import frames
from agspeed.launch.check.facts import Facts
from agspeed.launch.check.findings import Seen, findings, interfaces_of
from agspeed.launch.connection import Connection
from agspeed.launch.discovery import Discovery
from agspeed.launch.hosts import Host
from agspeed.launch.output import Output
from agspeed.launch.starters import Local, PodExec, Ssh, Starter
from agspeed.version import __version__

__all__ = ["CheckRequest", "Looks", "look_at", "run", "table"]

_JOB: dict[str, Any] = {"kind": "check", "command": [], "folder": "", "key": None, "environment": {}}
_HEADS = ("host", "Python", "torch", "agspeed", "clock", "interfaces", "free /dev/shm", "descriptors")
_OF_AGSPEED = _HEADS.index("agspeed")


@dataclass(frozen=True)
class CheckRequest:
    """The hosts to look at: `hosts`, or the output of a script. interfaces: as --network-interfaces names them."""

    num_ranks: int
    hosts: Sequence[Host]
    discovery_script: Path | None
    slots_per_host: int | None
    remote: Ssh | PodExec
    start_timeout_s: float
    interfaces: Sequence[str]


def run(request: CheckRequest) -> int:
    """Looks at the hosts, and prints what it finds.

    Returns: 0 without a finding, 1 with one. Raises: AgspeedError if the script that finds hosts fails.
    """
    with Output(1, None, False) as output:
        hosts = request.hosts or _found(request, output)
        looks = look_at(hosts, request.remote, request.start_timeout_s, output)
    num_ranks = request.num_ranks or sum(host.slots for host in hosts)
    problems = [*looks.problems, *findings(looks.seen, num_ranks, request.interfaces)]
    print("\n".join(table(looks.seen)))
    for sentence in problems:
        print(f"! {sentence}")
    if not problems:
        print("No findings.")
    return 1 if problems else 0


def _found(request: CheckRequest, output: Output) -> Sequence[Host]:
    """Runs the script that finds hosts. Raises: AgspeedError if it fails, or finds none."""
    assert request.discovery_script is not None
    discovery = Discovery(request.discovery_script, request.slots_per_host)
    try:
        while discovery.hosts is None and not discovery.complaint:
            discovery.note(output.wait(discovery.events(), discovery.deadline - time.monotonic()), time.monotonic())
    finally:
        discovery.close()
    if not discovery.hosts:
        text = f"--host-discovery-script {request.discovery_script} has found no host; see why it prints none."
        raise AgspeedError(discovery.complaint or text)
    return discovery.hosts


@dataclass(frozen=True)
class Looks:
    """The hosts that have answered, and a sentence for each of the others."""

    seen: Sequence[Seen]
    problems: Sequence[str]


def look_at(
    hosts: Sequence[Host], remote: Ssh | PodExec, start_timeout_s: float, output: Output, code: bytes = b""
) -> Looks:
    """Looks at hosts. code: for the agents of other hosts, as `Connection` takes it."""
    until = time.monotonic() + start_timeout_s
    looks: list[_Look] = []
    try:
        for host in hosts:
            starter = Local() if host.is_local else remote
            looks.append(_Look(host, starter, output, b"" if host.is_local else code))
        while not all(each.is_over for each in looks):
            events = {descriptor: event for each in looks for descriptor, event in each.events().items()}
            ready = output.wait(events, min([until, *(each.deadline for each in looks)]) - time.monotonic())
            for each in looks:
                each.look(ready)
                if time.monotonic() >= until and not each.is_over:
                    each.give_up(start_timeout_s)
    finally:
        for each in looks:
            each.kill()
            each.close()
    return Looks(
        [each.seen for each in looks if each.seen is not None], [each.problem for each in looks if each.problem]
    )


def table(seen: Sequence[Seen], *, has_agspeed: bool = True) -> list[str]:
    """Returns the lines of a table of hosts. has_agspeed: whether they answered by an agspeed of their own."""
    rows: list[Sequence[str]] = [_HEADS, *(_row(each) for each in seen)]
    if not has_agspeed:
        rows = [[*row[:_OF_AGSPEED], *row[_OF_AGSPEED + 1 :]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(seen: Seen) -> Sequence[str]:
    facts = seen.facts
    rails = [f"{each.name} {each.address}".strip() for each in interfaces_of(facts)]
    return (
        seen.name,
        facts.python,
        facts.torch or "none",
        __version__,
        f"{seen.ahead_s:+.1f} s",
        ", ".join(rails) or "none",
        f"{facts.shared_memory >> 20} MiB" if facts.shared_memory >= 0 else "none",
        str(facts.most_descriptors) if facts.most_descriptors >= 0 else "unlimited",
    )


class _Look(Connection):
    """The connection to a host that is looked at. It ends when the host has answered twice.

    Attributes:
        seen: what the host has said; None before.
        problem: a sentence that says why it has not; empty if it has.
    """

    loss = "was lost"

    def __init__(self, host: Host, starter: Starter, output: Output, code: bytes) -> None:
        super().__init__(host, f"host {host.name}", starter, output, _JOB, code)
        self.seen: Seen | None = None
        self.problem = ""
        self._asked_at: float | None = None
        self._facts: Facts | None = None

    def look(self, ready: Collection[int]) -> None:
        """Takes what has come, and asks when the agent is ready."""
        try:
            self.note(ready)
            if self.description is not None and self._asked_at is None:
                self.description.check_version(self.name)
                self._ask()
        except AgspeedError as error:
            self.problem = str(error)
            self.kill()

    def give_up(self, seconds: float) -> None:
        self.problem = self.problem or (
            f"{self.name} has not answered after {seconds:g} s; check that it is up and that "
            f"`{self.attempt}` is quick, or raise --start-timeout."
        )
        self.kill()

    def _ask(self) -> None:
        self._asked_at = time.time()
        self._link.send("ask", 0)

    def _note_of_job(self, frame: frames.Frame) -> None:
        if frame.kind != "facts" or self._asked_at is None or self.seen is not None:
            raise frames.FrameError(repr(frame.kind[:60]))
        facts = Facts.of(frame.value)
        if self._facts is None:
            self._facts = facts
            self._ask()
            return
        half_s = (time.time() - self._asked_at) / 2
        ahead_s = facts.clock - self._asked_at - half_s
        self.seen = Seen(self.host.name, facts, max(0.0, ahead_s - half_s) + min(0.0, ahead_s + half_s))
        self.end()
