# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of an elastic job: members on all hosts, and the coordinator that makes epochs of them.

A member that fails is replaced while training goes on without it. A host that is lost is tried again. Both happen after
a pause that grows with each failure on the host. Before the first epoch, a member that fails ends the job, as it does
in a job of a fixed size, and so does a host that the user has named.

A launcher that attaches to a job waits until hosts and members have reported (`attach/takeover.py`), and then goes on
as the earlier one would have. Until then, its end changes nothing for the job.

Threading: one thread makes and leaves `Members`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agspeed.errors import AgspeedError, UserError
from agspeed.launch.attach.identity import Identity
from agspeed.launch.attach.takeover import Takeover
from agspeed.launch.member_host import MemberHost, RefusedError, Said
from agspeed.launch.output import Output
from agspeed.launch.placement import places
from agspeed.launch.ranks import ending
from agspeed.launch.roster import HostPlan, Roster
from agspeed.membership.actions import Action, Change, End, Epoch, Expulsion, Release
from agspeed.membership.coordinator import Coordinator, Limits, Position, Progress
from agspeed.membership.epoch_store import Answer, EpochStore
from agspeed.membership.messages import Lines, MessageError, line_of

__all__ = ["ElasticPlan", "Members"]


@dataclass(frozen=True)
class ElasticPlan:
    """The job.

    Attributes:
        variables: every member gets them.
        most_resets: how many epochs may follow the first one; None for any number.
    """

    identity: Identity
    hosts: HostPlan
    variables: Mapping[str, str]
    limits: Limits
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
        self._roster = Roster(plan.hosts, output)
        self._members: dict[int, _Member] = {}
        self._takeover = Takeover(plan.identity.job, plan.limits) if plan.identity.is_attaching else None
        self._hint, self._kept = plan.identity.hint(), Progress()
        self._summary = ""
        self._last_failed: tuple[int, int] | None = None
        self._is_ending = self._has_finished = False

    def __enter__(self) -> Self:
        try:
            self._roster.note((), time.monotonic())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        while not self.are_over:
            ready = self._output.wait(self.events(), self.seconds_left())
            for each in self._roster.hosts:
                try:
                    each.note(ready, time.monotonic())
                except AgspeedError:  # the job has ended for another reason
                    each.drop()
        for each in self._roster.hosts:
            if each.is_lost:
                self.notes.append(f"{each.name} did not confirm the end of its members; look for processes there.")

    @property
    def are_over(self) -> bool:
        """Whether all agents have ended, and with them all members."""
        return self._is_ending and all(each.is_over for each in self._roster.hosts)

    def events(self) -> dict[int, int]:
        """The descriptors to wait for before `note`, with their events for select.poll()."""
        return self._roster.events()

    def seconds_left(self) -> float:
        """After which time `note` has to be called, even if nothing happens."""
        now, until = time.monotonic(), self._roster.deadline
        if not self._is_ending:
            until = min(until, self._coordinator.deadline)
        if self._takeover is not None and self._takeover.waits(now):
            until = min(until, self._takeover.deadline)
        return max(0.0, until - now)

    def note(self, ready: Collection[int]) -> None:
        """Takes frames, decides, and starts members.

        Raises: AgspeedError if the job cannot go on, with the reason; UserError if the command cannot be started.
        """
        for each in self._roster.hosts:
            self._note_host(each, ready)
        if self._is_ending:
            return
        now = time.monotonic()
        self._roster.note(ready, now, may_pause=self._takeover is not None or self._coordinator.epoch > 0)
        if self._takeover is not None and not self._take_over(self._takeover, now):
            return
        self._act(self._coordinator.tick(now), now)
        self._retire_members(now)
        self._start_members(now)
        if not self._members and (self._coordinator.is_over or not self._may_start_more()):
            self.end()

    def end(self) -> None:
        """Ends all members: SIGTERM, then SIGKILL after some seconds. Does not wait for the end."""
        if self._takeover is not None:
            for each in self._roster.hosts:
                each.drop()
        elif not self._is_ending:
            for member in self._members:
                self._tell(member, "over", "the job was ended.")
        self._is_ending = True
        self._roster.close()
        for each in self._roster.hosts:
            each.end()

    def name_of(self, member: int) -> str:
        """Names a member for the user."""
        return f"member {member}"

    # --- the takeover of a job ---

    def _take_over(self, takeover: Takeover, now: float) -> bool:
        """Goes on with the members of a lost launcher. Returns: False while hosts or members may still report.

        Raises: UserError if no host has members of the job.
        """
        if self._roster.is_asking or takeover.waits(now):
            return False
        takeover.check(self._roster.hosts)
        self._takeover, self._summary = None, takeover.summary
        self._roster.take_over(takeover.key)
        self._output.write_note(takeover.sentence())
        for member in takeover.silent():
            self._expel(member, f"it has not answered for {self._plan.limits.silence_s:g} s")
        self._coordinator, actions = takeover.coordinator(now)
        for member, status in takeover.ends:
            self._note_end(member, status, now)
        self._act(actions, now)
        for member, kind, value in takeover.later:
            self._take(member, [(kind, value)], now)
        return True

    # --- hosts ---

    def _note_host(self, host: MemberHost, ready: Collection[int]) -> None:
        lost: AgspeedError | None = None
        try:
            host.note(ready, time.monotonic())
        except AgspeedError as error:
            lost = error
        now = time.monotonic()  # the end of a connection takes its time
        if self._takeover is not None:
            for member, slot in self._takeover.hear_host(host, now):
                self._members[member] = _Member(host, slot, Lines())
        for event in host.take_news():
            if isinstance(event, Said):
                self._hear(event, now)
            elif self._takeover is not None:
                self._takeover.drop(event.member)
                self._takeover.ends.append((event.member, event.status))
            else:
                self._note_end(event.member, event.status, now)
        if lost is not None and self._is_ending:
            host.drop()
        elif lost is not None:
            self._lose(host, lost, now)

    def _lose(self, host: MemberHost, error: AgspeedError, now: float) -> None:
        """Goes on without a host, and tries it again after a pause.

        Raises: the error, if it ends the job.
        """
        host.drop()
        if isinstance(error, RefusedError):
            raise error
        is_needed = isinstance(error, UserError) or not self._roster.may_grow
        if host.is_wanted and is_needed and not self._coordinator.epoch and self._takeover is None:
            raise error
        if host.is_wanted:
            self._output.write_note(f"{error} The host is tried again in {host.pause(now):g} s.")
        lost = [number for number, each in self._members.items() if each.host is host]
        if self._takeover is not None:
            self._takeover.lose_host(lost, str(error))
        for number in lost:
            self._remove(number, now)

    def _retire_members(self, now: float) -> None:
        """Lets members leave if the job does not use their host or their slot any more."""
        for number, member in list(self._members.items()):
            if not member.is_retired and not (member.host.is_wanted and member.slot < member.host.host.slots):
                member.is_retired = True
                self._act(self._coordinator.retire(number, now), now)
        used = [each.host for each in self._members.values()]
        for host in self._roster.hosts:
            if not host.is_wanted and host not in used:
                host.end()

    def _start_members(self, now: float) -> None:
        hosts = self._roster.hosts
        is_first = not self._members and not self._coordinator.epoch
        if self._coordinator.is_over or (is_first and any(each.is_coming for each in hosts)):
            return  # the first members fill the hosts in their order
        num_here = Counter(id(each.host) for each in self._members.values())
        num_left = self._plan.limits.most - sum(not each.is_retired for each in self._members.values())
        for host in hosts:
            while num_left > 0 and host.has_room(num_here[id(host)], now):
                self._start(host, now)
                num_here[id(host)] += 1
                num_left -= 1

    def _may_start_more(self) -> bool:
        """Whether members may come if there is none. Once one has ended well, the job waits for no other host."""
        may_grow = self._roster.may_grow and not self._has_finished
        return may_grow or any(each.can_run_more() for each in self._roster.hosts)

    def _start(self, host: MemberHost, now: float) -> None:
        number, actions = self._coordinator.join(now)
        taken = {each.slot for each in self._members.values() if each.host is host}
        slot = next(slot for slot in range(host.host.slots) if slot not in taken)
        self._members[number] = _Member(host, slot, Lines())
        self._keep_progress()
        host.keep(self._kept)
        host.add(number, slot, self._plan.variables)
        self._act(actions, now)
        if self._hint:
            self._output.write_note(self._hint)
        self._hint = ""

    # --- members ---

    def _hear(self, said: Said, now: float) -> None:
        if (member := self._members.get(said.member)) is not None:
            self._take(said.member, member.lines.add(said.data), now)

    def _take(self, member: int, messages: Iterable[tuple[str, Any]], now: float) -> None:
        """Takes messages of a member. One that sends something else is ended."""
        try:
            for kind, value in messages:
                if self._takeover is not None:
                    self._takeover.hear(member, kind, value)
                else:
                    self._act(self._actions_for(member, kind, value, now), now)
        except MessageError as error:
            self._expel(member, f"it has sent {error}, which is no message of a member")

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
            case "summary", str(sentence):
                self._summary = sentence
                return []
            case "ask", [int(_), int(epoch), str(_), list(_)] if epoch > self._store.epoch:
                return coordinator.lost(member, epoch, now)  # its values were lost with an earlier launcher
            case "ask", [int(request), int(epoch), str(operation), list(arguments)]:
                self._answer(self._store.ask(member, request, epoch, operation, arguments))
                return []
        raise MessageError(f"{kind[:60]!r} with {str(value)[:60]!r}")

    def _answer(self, answers: Sequence[Answer]) -> None:
        for member, request, is_ok, value in answers:
            self._tell(member, "answer", [request, is_ok, value])

    def _note_end(self, number: int, status: int, now: float) -> None:
        member = self._members.get(number)
        if member is None:
            return
        is_failure = status != 0 and not member.is_expelled and not member.is_retired
        has_finished = status == 0 and not member.is_retired
        member.host.num_finished += has_finished
        self._has_finished |= has_finished
        if is_failure and not self._is_ending:
            if not self._coordinator.epoch or self._coordinator.is_over:
                self.first_failed = self.first_failed or (number, status)
                self.end()
            else:
                member.host.pause(now)
                self._output.write_note(
                    f"member {number} on {member.host.name} ended {ending(status)}; the others go on"
                )
                self._last_failed = number, status
        self._remove(number, now)

    def _remove(self, number: int, now: float) -> None:
        """Forgets a member that has ended."""
        del self._members[number]
        self._store.forget(number)
        if not self._is_ending:
            self._act(self._coordinator.gone(number, now), now)

    # --- decisions ---

    def _act(self, actions: Sequence[Action], now: float) -> None:
        self._keep_progress()
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
                    elif self._summary:
                        self._output.write_note(self._summary)

    def _keep_progress(self) -> None:
        """Lets all agents know of changes before any member does."""
        if (progress := self._coordinator.progress) != self._kept:
            self._kept = progress
            for each in self._roster.hosts:
                each.keep(progress)

    def _begin(self, epoch: Epoch) -> None:
        resets = self._plan.most_resets
        if resets is not None and epoch.number > 1 + resets:
            raise AgspeedError(f"the members have changed {resets} times, which is the most that --reset-limit allows.")
        self._answer(self._store.begin(epoch.number))
        hosts = [id(self._members[member].host) for member in epoch.members]
        for member, place in zip(epoch.members, places(epoch, hosts), strict=True):
            self._tell(member, "epoch", place.to_json())
        if epoch.number > 1:
            names = ", ".join(map(str, epoch.members))
            train = "1 member trains" if len(epoch.members) == 1 else f"{len(epoch.members)} members train"
            self._output.write_note(f"epoch {epoch.number}: {train} ({names})")

    def _fail(self, reason: str) -> None:
        """Ends the job. Raises: AgspeedError with the reason, if members still live; else the last failure is it."""
        if self._members or self._last_failed is None:
            raise AgspeedError(f"the job cannot go on: {reason}")
        self.first_failed = self._last_failed
        self.end()

    def _expel(self, number: int, reason: str) -> None:
        member = self._members[number]
        member.is_expelled = True
        member.host.pause(time.monotonic())
        self._output.write_note(f"member {number} on {member.host.name} is ended: {reason}; the others go on")
        member.host.expel(number)

    def _tell(self, member: int, kind: str, value: Any) -> None:
        found = self._members.get(member)
        if found is not None:
            found.host.tell(member, line_of(kind, value))


@dataclass
class _Member:
    host: MemberHost
    slot: int
    lines: Lines
    is_expelled: bool = False
    is_retired: bool = False
    """Whether it is to leave, because the job does not use its host any more."""
