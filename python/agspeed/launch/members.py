# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of an elastic job: members on all hosts, and the coordinator that makes epochs of them.

A member that ends is replaced, after a pause that grows with each failure on its host, while training goes on without
it. Before the first epoch, a member that fails ends the job, as it does in a job of a fixed size.

Threading: one thread makes and leaves `Members`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import frames
from agspeed.launch.connection import Connection
from agspeed.launch.hosts import Host
from agspeed.launch.output import Output
from agspeed.launch.placement import places
from agspeed.launch.ranks import ending
from agspeed.launch.starters import Starter
from agspeed.membership.coordinator import Action, Change, Coordinator, End, Epoch, Expulsion, Limits, Position, Release
from agspeed.membership.epoch_store import Answer, EpochStore
from agspeed.membership.messages import Lines, MessageError, line_of

__all__ = ["ElasticPlan", "Members"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


@dataclass(frozen=True)
class ElasticPlan:
    """The job, as the agents of all hosts run it.

    Attributes:
        starters, jobs: by host, in the order of `hosts`.
        variables: every member gets them.
        most_resets: how many epochs may follow the first one; None for any number.
    """

    hosts: Sequence[Host]
    starters: Sequence[Starter]
    jobs: Sequence[Mapping[str, Any]]
    variables: Mapping[str, str]
    limits: Limits
    start_timeout_s: float
    most_resets: int | None = None


class Members:
    """The members of a job; a context manager. Leaving it ends the members that still run, and waits for their end.

    Attributes:
        first_failed: the first member whose end is the job's, and its status (minus the signal).
        notes: sentences for the user, of which the job does not fail.
    """

    def __init__(self, plan: ElasticPlan, output: Output) -> None:
        self.first_failed: tuple[int, int] | None = None
        self.notes: list[str] = []
        self._plan, self._output = plan, output
        self._coordinator, self._store = Coordinator(plan.limits), EpochStore()
        self._hosts: list[_Host] = []
        self._members: dict[int, _Member] = {}
        self._is_ending = False
        self._start_deadline = time.monotonic() + plan.start_timeout_s

    def __enter__(self) -> Self:
        try:
            for host, starter, job in zip(self._plan.hosts, self._plan.starters, self._plan.jobs, strict=True):
                self._hosts.append(_Host(host, starter, self._output, job))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        while not self.are_over:
            ready = self._output.wait(self.events(), self.seconds_left())
            for each in self._hosts:
                try:
                    each.note(ready)
                except AgspeedError:  # the job has ended for another reason
                    each.kill()
        for each in self._hosts:
            each.close()
            if each.is_lost:
                self.notes.append(f"{each.name} did not confirm the end of its members; look for processes there.")

    @property
    def are_over(self) -> bool:
        """Whether all agents have ended, and with them all members."""
        return all(each.is_over for each in self._hosts)

    def events(self) -> dict[int, int]:
        """The descriptors to wait for before `note`, with their events for select.poll()."""
        return {descriptor: event for each in self._hosts for descriptor, event in each.events().items()}

    def seconds_left(self) -> float:
        """After which time `note` has to be called, even if nothing happens."""
        deadlines = [each.deadline for each in self._hosts if not each.is_over]
        if not self._is_ending:
            deadlines.append(self._coordinator.deadline)
            deadlines += [each.start_at for each in self._hosts if each.start_at > time.monotonic()]
            if any(each.description is None for each in self._hosts):
                deadlines.append(self._start_deadline)
        return max(0.0, min(deadlines, default=math.inf) - time.monotonic())

    def note(self, ready: Collection[int]) -> None:
        """Takes frames, decides, and starts members.

        Raises: AgspeedError if the job cannot go on, with the reason; UserError if the command cannot be started.
        """
        now = time.monotonic()
        for each in self._hosts:
            self._note_host(each, ready, now)
        if self._is_ending:
            return
        self._act(self._coordinator.tick(now), now)
        self._start_members(now)
        if not self._members and (self._coordinator.is_over or not any(each.can_run_more for each in self._hosts)):
            self.end()

    def end(self) -> None:
        """Ends all members: SIGTERM, then SIGKILL after some seconds. Does not wait for the end."""
        if not self._is_ending:
            for member in self._members:
                self._tell(member, "over", "the job was ended.")
        self._is_ending = True
        for each in self._hosts:
            each.end()

    def name_of(self, member: int) -> str:
        """Names a member for the user."""
        return f"member {member}"

    # --- hosts ---

    def _note_host(self, host: _Host, ready: Collection[int], now: float) -> None:
        lost: AgspeedError | None = None
        try:
            host.note(ready)
        except UserError:
            raise
        except AgspeedError as error:
            lost = error
        for event in host.take_news():
            if isinstance(event, _Said):
                self._hear(event, now)
            else:
                self._note_end(event.member, event.status, now)
        if lost is not None and not self._is_ending:
            self._lose(host, lost, now)

    def _lose(self, host: _Host, error: AgspeedError, now: float) -> None:
        """Goes on without a host. Raises: the error, if no host is left or training has not begun."""
        host.kill()
        if not self._coordinator.epoch or all(each.is_over for each in self._hosts):
            raise error
        self._output.write_note(f"{error} The others go on.")
        for number in [number for number, each in self._members.items() if each.host is host]:
            del self._members[number]
            self._act(self._coordinator.gone(number, now), now)

    def _start_members(self, now: float) -> None:
        if self._coordinator.is_over:
            return
        late = [each for each in self._hosts if each.description is None and not each.is_over]
        if late and not self._coordinator.epoch:
            if now < self._start_deadline:
                return
            raise AgspeedError(
                f"{late[0].name} was not ready after {self._plan.start_timeout_s:g} s; check that it is up and that "
                f"`ssh {late[0].host.name} true` is quick, or raise --start-timeout."
            )
        for host in self._hosts:
            while len(self._members) < self._plan.limits.most and host.has_room(self._members.values(), now):
                self._start(host, now)

    def _start(self, host: _Host, now: float) -> None:
        number, actions = self._coordinator.join(now)
        slot = host.free_slot(self._members.values())
        self._members[number] = _Member(host, slot, Lines())
        host.add(number, {**self._plan.variables, **host.variables(slot)})
        self._act(actions, now)

    # --- members ---

    def _hear(self, said: _Said, now: float) -> None:
        """Takes messages of a member. One that sends something else is ended."""
        member = self._members.get(said.member)
        if member is None:
            return
        try:
            for kind, value in member.lines.add(said.data):
                self._act(self._actions_for(said.member, kind, value, now), now)
        except MessageError as error:
            self._expel(said.member, f"it has sent {error}, which is no message of a member")

    def _actions_for(self, member: int, kind: str, value: Any, now: float) -> list[Action]:
        coordinator = self._coordinator
        match kind, value:
            case "ready", [int(epoch), bool(has_state), int(step), bool(is_done)]:
                return coordinator.ready(member, epoch, Position(has_state, step, is_done), now)
            case "lost", int(epoch):
                return coordinator.lost(member, epoch, now)
            case "alive", 0:
                return coordinator.answer(member, now)
            case "synced", int(epoch):
                return coordinator.synced(member, epoch, now)
            case "leave", 0:
                return coordinator.leave(member, now)
            case "ask", [int(request), int(epoch), str(operation), list(arguments)]:
                self._answer(self._store.ask(member, request, epoch, operation, arguments))
                return []
        raise MessageError(f"{kind[:60]!r} with {str(value)[:60]!r}")

    def _answer(self, answers: Sequence[Answer]) -> None:
        for member, request, is_ok, value in answers:
            self._tell(member, "answer", [request, is_ok, value])

    def _note_end(self, number: int, status: int, now: float) -> None:
        member = self._members.pop(number, None)
        if member is None:
            return
        self._store.forget(number)
        if self._is_ending:
            return
        is_failure = status != 0 and not member.is_expelled
        member.host.num_finished += status == 0
        if is_failure and (not self._coordinator.epoch or self._coordinator.is_over):
            self.first_failed = self.first_failed or (number, status)
            self.end()
            return
        if is_failure:
            member.host.pause(now)
            self._output.write_note(f"member {number} on {member.host.name} ended {ending(status)}; the others go on")
            member.host.last_failed = number, status
        self._act(self._coordinator.gone(number, now), now)

    # --- decisions ---

    def _act(self, actions: Sequence[Action], now: float) -> None:
        for action in actions:
            match action:
                case Epoch():
                    self._begin(action)
                case Change(members, is_broken):
                    for member in members:
                        self._tell(member, "change", int(is_broken))
                case Release(member):
                    self._tell(member, "release", 0)
                case Expulsion(member, reason):
                    self._expel(member, reason)
                case End(reason):
                    for member in self._members:
                        self._tell(member, "over", reason)
                    if reason:
                        self._fail(reason)

    def _begin(self, epoch: Epoch) -> None:
        resets = self._plan.most_resets
        if resets is not None and epoch.number > 1 + resets:
            raise AgspeedError(f"the members have changed {resets} times, which is the most that --reset-limit allows.")
        self._answer(self._store.begin(epoch.number))
        hosts = [self._hosts.index(self._members[member].host) for member in epoch.members]
        for member, place in zip(epoch.members, places(epoch, hosts), strict=True):
            self._tell(member, "epoch", place.to_json())
        if epoch.number > 1:
            names = ", ".join(map(str, epoch.members))
            self._output.write_note(f"epoch {epoch.number}: {len(epoch.members)} members train ({names})")

    def _fail(self, reason: str) -> None:
        """Ends the job. Raises: AgspeedError with the reason, if members still live; else the last failure is it."""
        failed = [each.last_failed for each in self._hosts if each.last_failed is not None]
        if self._members or not failed:
            raise AgspeedError(f"the job cannot go on: {reason}")
        self.first_failed = failed[-1]
        self.end()

    def _expel(self, number: int, reason: str) -> None:
        member = self._members[number]
        member.is_expelled = True
        self._output.write_note(f"member {number} on {member.host.name} is ended: {reason}; the others go on")
        member.host.expel(number)

    def _tell(self, member: int, kind: str, value: Any) -> None:
        found = self._members.get(member)
        if found is not None:
            found.host.tell(member, line_of(kind, value))


@dataclass
class _Member:
    host: _Host
    slot: int
    lines: Lines
    is_expelled: bool = False


@dataclass(frozen=True)
class _Said:
    member: int
    data: bytes


@dataclass(frozen=True)
class _Ended:
    member: int
    status: int


class _Host(Connection):
    """A host and its members.

    Attributes:
        start_at: when it may get the next member (time.monotonic()).
        last_failed: its member that failed last, and the status.
        num_finished: how many members have ended with status 0.
    """

    def __init__(self, host: Host, starter: Starter, output: Output, job: Mapping[str, Any]) -> None:
        super().__init__(host, f"host {host.name}", starter, output, job)
        self.start_at = 0.0
        self.last_failed: tuple[int, int] | None = None
        self.num_finished = self._num_failures = 0
        self._news: list[_Said | _Ended] = []
        self._known: set[int] = set()

    @property
    def can_run_more(self) -> bool:
        """Whether a member may start here at some time. The slot of a member that has ended well stays free."""
        return not self.is_over and self.num_finished < self.host.slots

    def has_room(self, members: Collection[_Member], now: float) -> bool:
        num_here = self.num_finished + sum(each.host is self for each in members)
        return self.description is not None and not self.is_over and now >= self.start_at and num_here < self.host.slots

    def free_slot(self, members: Collection[_Member]) -> int:
        taken = {each.slot for each in members if each.host is self}
        return next(slot for slot in range(self.host.slots) if slot not in taken)

    def variables(self, slot: int) -> dict[str, str]:
        """The variables of a member, which it keeps in all epochs. slot: no other living member of the host has it."""
        return {"LOCAL_RANK": str(slot), "HOROVOD_HOSTNAME": self.host.name.rpartition("@")[2], "PYTHONUNBUFFERED": "1"}

    def pause(self, now: float) -> None:
        """Starts no member for a time, because one has failed."""
        self.start_at = now + min(_FIRST_PAUSE_S * 2**self._num_failures, _LONGEST_PAUSE_S)
        self._num_failures = min(self._num_failures + 1, 10)

    def add(self, member: int, variables: Mapping[str, str]) -> None:
        self._has_started = True
        self._known.add(member)
        self._link.send("add", [member, dict(variables)])

    def tell(self, member: int, data: bytes) -> None:
        self._link.send("control", member, data)

    def expel(self, member: int) -> None:
        self._link.send("expel", member)

    def take_news(self) -> list[_Said | _Ended]:
        news, self._news = self._news, []
        return news

    def _note_of_job(self, frame: frames.Frame) -> None:
        match frame.kind, frame.value:
            case "output", [int(member), 0 | 1 as stream] if member in self._known:
                self._pass_on(member, stream, frame.data, len(self._known))
            case "control", int(member) if member in self._known:
                self._news.append(_Said(member, frame.data))
            case "gone", [int(member), int(status)] if member in self._known and -128 < status < 256:
                self._news.append(_Ended(member, status))
            case _:
                raise frames.FrameError(repr(frame.kind[:60]))
