# SPDX-License-Identifier: Apache-2.0
"""The hosts of an elastic job. The user has named them, or a script finds them from time to time.

Threading: one thread owns a `Roster`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agspeed.errors import AgspeedError
from agspeed.launch.discovery import Discovery
from agspeed.launch.exchange import Call
from agspeed.launch.hosts import Host
from agspeed.launch.member_host import MemberConnection, MemberHost, Pause
from agspeed.launch.output import Output
from agspeed.launch.reach.admission import Admission
from agspeed.launch.starters import Starter

__all__ = ["HostPlan", "Roster"]


@dataclass(frozen=True)
class HostPlan:
    """Where members run.

    Attributes:
        hosts: the ones that the user has named; none if `discovery` finds them.
        starter, job: of a host: how its agent is started, and the agent's "job".
        start_timeout_s: how long a host may take until it is ready.
        pause_s: the shortest and the longest time for which a host stays unused after a failure.
        is_attaching: whether the hosts may have members of a launcher that was lost.
        call: the call that the members make; None if they run a command only.
        probes: whether the interfaces of hosts are probed before members start there.
    """

    hosts: Sequence[Host]
    discovery: Discovery | None
    starter: Callable[[Host], Starter]
    job: Callable[[Host], Mapping[str, Any]]
    start_timeout_s: float
    pause_s: tuple[float, float]
    is_attaching: bool = False
    call: Call | None = None
    probes: bool = False


class Roster:
    """The hosts of a job. It ends nothing by itself: `close` is for hosts that are over.

    Attributes:
        hosts: the ones that the job uses, and the ones that it is leaving, in the order in which they came.
    """

    def __init__(self, plan: HostPlan, output: Output) -> None:
        self.hosts: list[MemberHost] = []
        self._plan, self._output = plan, output
        self._wanted: Sequence[Host] = plan.hosts
        self._pauses: dict[str, Pause] = {}
        self._said = ""
        self._mode = "attach" if plan.is_attaching else "new"  # `attach/callers.py`
        self._changes: dict[str, Any] = {}  # of the agents' "job"
        self._admission = Admission(output, probes=plan.probes)

    @property
    def may_grow(self) -> bool:
        """Whether hosts may come that the job does not know yet."""
        return self._plan.discovery is not None

    @property
    def is_asking(self) -> bool:
        """Whether hosts may still have members of a launcher that was lost, and have not reported."""
        is_unknown = self._plan.discovery is not None and self._plan.discovery.hosts is None
        return self._mode == "attach" and (is_unknown or any(each.is_asking for each in self.hosts))

    def take_over(self, key: str | None) -> None:
        """All hosts have reported. key: of the job, for agents from now on."""
        self._mode, self._changes = "replace", {"key": key}

    @property
    def deadline(self) -> float:
        """When `note` or a host has something to do at the latest (time.monotonic())."""
        of_script = [] if self._plan.discovery is None else [self._plan.discovery.deadline]
        return min([self._admission.deadline, *of_script, *(each.deadline for each in self.hosts)])

    def events(self) -> dict[int, int]:
        """The descriptors to wait for before `note`, with their events for select.poll()."""
        found = {} if self._plan.discovery is None else self._plan.discovery.events()
        return found | {descriptor: event for each in self.hosts for descriptor, event in each.events().items()}

    def note(self, ready: Collection[int], now: float, *, may_pause: bool = False) -> None:
        """Takes what the script has found, connects hosts, and probes their interfaces.

        Hosts that the job is to leave lose `is_wanted`; the caller lets their members leave. A host that comes back
        meanwhile is used beside them.

        may_pause: a connection that cannot be started is tried again after the host's pause, and raises nothing.
        Raises: AgspeedError if the first run of the script has failed, or if a connection cannot be started.
        """
        if self._plan.discovery is not None:
            self._discover(self._plan.discovery, ready, now)
        self.hosts = [each for each in self.hosts if each.is_wanted or not each.is_over]
        known = {each.host.name for each in self.hosts if each.is_wanted}
        for host in self._wanted:
            if host.name not in known:
                self.hosts.append(self._new(host))
        for each in self.hosts:
            if self._mode == "attach" and not each.is_asking:
                continue  # it has no members; the key of the job is not known yet
            try:
                each.connect(now)
            except AgspeedError as error:
                if not may_pause:
                    raise
                self._output.write_note(f"{each.name}: {error} It is tried again in {each.pause(now):g} s.")
        self._admission.note(self.hosts, now)

    def close(self) -> None:
        """Ends the script that finds hosts, and the probe that is under way."""
        self._admission.close()
        if self._plan.discovery is not None:
            self._plan.discovery.close()

    def _new(self, host: Host) -> MemberHost:
        """A host that comes again keeps its pause."""
        plan = self._plan
        pause = self._pauses.setdefault(host.name, Pause(*plan.pause_s))

        agent = os.urandom(8).hex()  # equal in all connections of this `MemberHost`

        def connect(host: Host, mode: str) -> MemberConnection:
            job = {**plan.job(host), **self._changes, "mode": mode, "agent": agent}
            return MemberConnection(host, plan.starter(host), self._output, job, plan.call)

        return MemberHost(host, connect, pause, plan.start_timeout_s, self._mode)

    def _discover(self, discovery: Discovery, ready: Collection[int], now: float) -> None:
        before = discovery.hosts
        discovery.note(ready, now)
        if discovery.complaint and discovery.hosts is None:
            raise AgspeedError(discovery.complaint)
        if discovery.complaint not in ("", self._said):
            self._output.write_note(f"{discovery.complaint} The hosts stay as they are.")
        self._said = discovery.complaint
        if discovery.hosts is None or discovery.hosts == before:
            return
        self._wanted = discovery.hosts
        found = {host.name: host for host in discovery.hosts}
        for each in self.hosts:
            each.is_wanted &= each.host.name in found
            each.host = found.get(each.host.name, each.host)
        if before is not None:
            self._tell_of_changes({host.name for host in before}, set(found))

    def _tell_of_changes(self, before: set[str], after: set[str]) -> None:
        for name in sorted(before - after):
            self._output.write_note(f"host {name} is not in the list any more, so its members leave")
        for name in sorted(after - before):
            self._output.write_note(f"host {name} is in the list")
