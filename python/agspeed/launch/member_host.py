# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of one host of an elastic job. The host may be lost, and gets another connection after a pause.

Threading: one thread owns a `MemberHost`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import frames
from agspeed.launch.attach.report import HostReport
from agspeed.launch.connection import Connection
from agspeed.launch.exchange import Call
from agspeed.launch.hosts import Host
from agspeed.launch.output import Output
from agspeed.launch.reach.survey import Survey
from agspeed.launch.starters import Starter
from agspeed.membership.coordinator import Progress

__all__ = ["Ended", "MemberConnection", "MemberHost", "Pause", "RefusedError", "Said"]


class RefusedError(UserError):
    """The host has an agent of the job that another launcher owns, or that this one may not have."""


@dataclass(frozen=True)
class Said:
    """A member has sent messages to the coordinator."""

    member: int
    data: bytes


@dataclass(frozen=True)
class Ended:
    """A member's process has ended. status: minus the signal that has killed it."""

    member: int
    status: int


@dataclass
class Pause:
    """How long a host stays unused after a failure: twice as long each time, up to a limit. It always ends.

    A host that has been used for longer than the limit begins with the shortest pause again.

    Attributes:
        until: when the pause ends (time.monotonic()).
    """

    shortest_s: float
    longest_s: float
    until: float = 0.0
    _last_s: float = 0.0

    def begin(self, now: float) -> float:
        """Begins one. Returns: how long it is."""
        if now > self.until + self.longest_s:
            self._last_s = 0.0
        self._last_s = min(max(self.shortest_s, 2 * self._last_s), self.longest_s)
        self.until = now + self._last_s
        return self._last_s


class MemberHost:
    """A host and its members.

    Attributes:
        host: its name and slots. The slots may change.
        is_wanted: whether the job still uses it. If not, it is over once its members have ended.
        is_lost: whether its connection was lost while the job ended, before it confirmed its members' end.
        is_asking: whether it may have members of a launcher that was lost, and has not reported.
        is_admitted: whether members may start here, because its interfaces were probed (`reach/admission.py`).
        num_finished: how many members have ended with status 0.
    """

    def __init__(
        self,
        host: Host,
        connect: Callable[[Host, str], MemberConnection],
        pause: Pause,
        start_s: float,
        mode: str,
    ) -> None:
        """
        Args:
            connect: takes a mode, too (`attach/callers.py`).
            start_s: how long it may take until it is ready.
            mode: of the first connection.
        """
        self.host = host
        self.is_asking, self._mode = mode == "attach", mode
        self.is_wanted, self.is_lost, self.is_admitted = True, False, False
        self.num_finished = 0
        self._connect, self._pause, self._start_s = connect, pause, start_s
        self._connection: MemberConnection | None = None
        self._news: list[Said | Ended] = []  # of connections that are over
        self._ready_by = math.inf
        self._last_tried = 0.0  # when `connect` was called

    @property
    def name(self) -> str:
        """The host, for a sentence."""
        return f"host {self.host.name}"

    @property
    def is_being_connected(self) -> bool:
        return self._connection is not None and self._connection.description is None

    @property
    def is_ready(self) -> bool:
        """Whether its agent can start members."""
        return self._connection is not None and self._connection.description is not None and not self.is_asking

    @property
    def is_coming(self) -> bool:
        """Whether it is connected, or is to be probed."""
        return self._connection is not None and not self.is_admitted

    @property
    def is_over(self) -> bool:
        """Whether it has no connection, and so no members."""
        return self._connection is None

    @property
    def deadline(self) -> float:
        """When there is something to do at the latest (time.monotonic())."""
        pause_ends = self._pause.until if self._pause.until > self._last_tried else math.inf
        return min(pause_ends, self._ready_by, math.inf if self._connection is None else self._connection.deadline)

    def events(self) -> dict[int, int]:
        """The descriptors to wait for before `note`, with their events for select.poll()."""
        return {} if self._connection is None else self._connection.events()

    def can_run_more(self, num_members: int = 0) -> bool:
        """Whether a member may start here at some time, beside `num_members`.

        The slot of a member that has ended well stays free.
        """
        return self.is_wanted and self.num_finished + num_members < self.host.slots

    def has_room(self, num_members: int, now: float) -> bool:
        """Whether a member may start here at once. num_members: how many run here."""
        return self.is_ready and self.is_admitted and now >= self._pause.until and self.can_run_more(num_members)

    def connect(self, now: float) -> None:
        """Connects the host, if it has neither a connection nor a pause."""
        self._last_tried = now
        if self._connection is None and self.is_wanted and now >= self._pause.until:
            mode, self._mode = self._mode, "replace"
            self._connection, self._ready_by = self._connect(self.host, mode), now + self._start_s

    def note(self, ready: Collection[int], now: float) -> None:
        """Takes what has come. Raises: AgspeedError if the host has failed."""
        if self._connection is None:
            return
        self._connection.note(ready)
        if self._connection.refusal:
            where = "" if self.host.is_local else f"{self.name}: "
            raise RefusedError(f"{where}{self._connection.refusal}")
        if self._connection.description is not None:
            self._connection.description.check_version(self.name)
            self._ready_by = math.inf
        elif now >= self._ready_by:
            also = ", that no process of the job is stopped there," if self.is_asking else ""
            raise AgspeedError(
                f"{self.name} was not ready after {self._start_s:g} s; check that it is up{also} and that "
                f"`{self._connection.attempt}` is quick, or raise --start-timeout."
            )
        if self._connection.is_over:
            self._close()

    def take_report(self) -> HostReport | None:
        """Returns: what the agent of a lost launcher has said, once."""
        report = None if self._connection is None else self._connection.take_report()
        self.is_asking &= report is None
        self.is_admitted |= report is not None
        return report

    def probe(self, survey: Survey) -> None:
        """Begins a probe of its interfaces. The answers go to `survey`."""
        self._link().probe(survey)

    def is_probed_by(self, survey: Survey) -> bool:
        """Whether its answers go to `survey`. They do not if the connection was lost."""
        return self._connection is not None and self._connection.survey is survey

    def ask(self, others: Sequence[Mapping[str, Any]]) -> None:
        """Lets it reach the other hosts of its probe. Repeated calls do nothing."""
        self._link().ask(others)

    def admit(self, interfaces: Sequence[str]) -> None:
        """Ends its probe, and lets members start there.

        interfaces: the names of the interfaces that they use; none for all, or for the ones that were chosen before.
        """
        self.is_admitted = True
        self._link().admit(interfaces)

    def keep(self, progress: Progress) -> None:
        """Lets the agent keep what another launcher has to know."""
        if self._connection is not None:
            self._connection.keep(progress)

    def take_news(self) -> list[Said | Ended]:
        """Returns: what has become of members since the last call, in order."""
        news, self._news = self._news, []
        return news if self._connection is None else news + self._connection.take_news()

    def pause(self, now: float) -> float:
        """Leaves the host unused for a time, because it or one of its members has failed. Returns: how long."""
        return self._pause.begin(now)

    def add(self, member: int, slot: int, variables: Mapping[str, str]) -> None:
        """Starts a member, which keeps its variables in all epochs. slot: no other living member here has it."""
        name = self.host.name.rpartition("@")[2]
        own = {"LOCAL_RANK": str(slot), "HOROVOD_HOSTNAME": name, "PYTHONUNBUFFERED": "1"}
        self._link().add(member, {**variables, **own})

    def tell(self, member: int, data: bytes) -> None:
        """Sends a message to a member. It is dropped if the connection was lost, and the member with it."""
        if self._connection is not None:
            self._connection.tell(member, data)

    def expel(self, member: int) -> None:
        """Ends a member."""
        if self._connection is not None:
            self._connection.expel(member)

    def end(self) -> None:
        """Ends its members: SIGTERM, then SIGKILL after some seconds. Does not wait for the end."""
        self._ready_by, self._last_tried = math.inf, math.inf
        if self._connection is not None:
            self._connection.end()

    def drop(self) -> None:
        """Gives the connection up. The agent there ends its members when it notices that."""
        if self._connection is not None:
            self._connection.kill()
            self._close()

    def _link(self) -> MemberConnection:
        assert self._connection is not None, f"{self.name} has members without a connection"
        return self._connection

    def _close(self) -> None:
        self.is_lost |= self._link().is_lost
        self._news += self._link().take_news()
        self._link().close()
        self._connection, self._ready_by = None, math.inf
        self.is_asking = self.is_admitted = False


class MemberConnection(Connection):
    """A connection to the agent of a host in an elastic job.

    Attributes:
        refusal: why the agent there does not take this launcher; empty if it does.
        survey: gets the answers of the probe that is under way, or of the last one.
    """

    loss = "was lost"

    def __init__(self, host: Host, starter: Starter, output: Output, job: Mapping[str, Any], call: Call | None) -> None:
        super().__init__(host, f"host {host.name}", starter, output, job, call=call)
        self.refusal = ""
        self.survey: Survey | None = None
        self._has_asked = False
        self._news: list[Said | Ended] = []
        self._known: set[int] = set()
        self._may_report = job["mode"] == "attach"
        self._report: HostReport | None = None
        self._kept: Progress | None = None

    def take_report(self) -> HostReport | None:
        report, self._report = self._report, None
        return report

    def keep(self, progress: Progress) -> None:
        if progress != self._kept and self.description is not None:
            self._kept = progress
            self._link.send("progress", list(astuple(progress)))

    def probe(self, survey: Survey) -> None:
        self.survey, self._has_asked = survey, False
        self._link.send("probe", survey.probe(self.host.name))

    def ask(self, others: Sequence[Mapping[str, Any]]) -> None:
        if not self._has_asked:
            self._has_asked = True
            self._link.send("others", list(others))

    def admit(self, interfaces: Sequence[str]) -> None:
        if self.survey is not None:
            self._link.send("interfaces", list(interfaces))

    def add(self, member: int, variables: Mapping[str, str]) -> None:
        self._has_started = True
        self._known.add(member)
        self._link.send("add", [member, dict(variables)])

    def tell(self, member: int, data: bytes) -> None:
        self._link.send("control", member, data)

    def expel(self, member: int) -> None:
        self._link.send("expel", member)

    def take_news(self) -> list[Said | Ended]:
        news, self._news = self._news, []
        return news

    def _note_of_job(self, frame: frames.Frame) -> None:
        match frame.kind, frame.value:
            case "output", [int(member), 0 | 1 as stream] if member in self._known:
                self._pass_on(member, stream, frame.data, len(self._known))
            case "control", int(member) if member in self._known:
                self._news.append(Said(member, frame.data))
            case "gone", [int(member), int(status)] if member in self._known and -128 < status < 256:
                self._news.append(Ended(member, status))
            case "result", [int(member), bool(is_last)] if self._call is not None and member in self._known:
                self._call.add(member, is_last, frame.data)
            case "rails", value if self.survey is not None:
                self.survey.note_rails(self.host.name, value)
            case "failures", value if self.survey is not None:
                self.survey.note_failures(self.host.name, value)
            case "report", value if self._may_report:
                self._may_report, self._has_started = False, True
                self._report = HostReport.of(value)
                self._known = {*(each.member for each in self._report.living), *(each for each, _ in self._report.gone)}
            case "absent", 0 if self._may_report:
                self._has_confirmed = True  # the end of the connection is not a failure
            case "refused", str(sentence) if not self._has_started:
                self.refusal = sentence
            case _:
                raise frames.FrameError(repr(frame.kind[:60]))
