# SPDX-License-Identifier: Apache-2.0
"""The agent's part in an elastic job: it starts and ends single members, and connects them to the coordinator.

Each member has a keeper of its own (`keeper.py`). So the end of one member ends what that member has started, and
nothing else.

If the launcher is lost, the agent keeps the members for a time, and waits for another launcher (`attach/`). Meanwhile
the members' messages are dropped, because members report to a new coordinator anew. Of their output, the newest part
waits.

Threading: the agent's thread.
"""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import frames
from agspeed.launch.attach.callers import Callers, Offer
from agspeed.launch.exchange import Memory
from agspeed.launch.launcher_link import LauncherLink
from agspeed.launch.pipes import STREAMS, Backlog, Piece, Pipes
from agspeed.launch.ranks import Ranks
from agspeed.launch.reach.choice import choice
from agspeed.membership.messages import CONTROL_VARIABLE, MOST_BYTES, line_of
from agspeed.parent_death import outlive_parent

if TYPE_CHECKING:
    from agspeed.launch.reach.answer import Answers

__all__ = ["run"]

_CHUNK_BYTES = 1 << 16


def run(
    link: LauncherLink,
    job: Mapping[str, Any],
    described: Mapping[str, Any],
    variables: Mapping[str, str],
    inherited: Sequence[int],
    argument: int | None,
) -> None:
    """Starts, follows and ends members, as the launcher says, until it ends the job.

    Args:
        job: as the launcher has sent it.
        described: this host, for a new launcher.
        variables: for all members; the launcher sends others for each one.
        inherited: descriptors that members inherit under the same numbers.
        argument: the descriptor of the call's argument; None if the job is no call.

    Raises: ClosedError if the launcher or its connection is lost, and no other launcher comes in time. All members are
    ended then.
    """
    with Pipes() as pipes, _callers(job) as callers:
        host = _Host(link, _Way(job["command"], variables, inherited, argument), pipes)
        try:
            while not host.is_over:
                host.turn(callers, described)
        finally:
            host.close()


@contextlib.contextmanager
def _callers(job: Mapping[str, Any]) -> Iterator[Callers | None]:
    """Yields the socket at which another launcher reaches this agent; None if the job ends with its launcher."""
    if job["id"] is None:
        yield None
        return
    outlive_parent()
    try:
        found = Callers(job)
    except OSError as error:
        raise AgspeedError(
            f"no socket can be opened for launchers that follow: {error.strerror}; give --launcher-grace 0."
        ) from None
    with found:
        yield found


@dataclass(frozen=True)
class _Way:
    """How members are started.

    Attributes: as `run` takes them.
    """

    command: Sequence[str]
    variables: Mapping[str, str]
    inherited: Sequence[int]
    argument: int | None


class _Host:
    """The members on this host, and what a new launcher has to know.

    Attributes:
        is_over: whether the launcher has ended the job, and all members have ended.
    """

    def __init__(self, link: LauncherLink, way: _Way, pipes: Pipes) -> None:
        self._link, self._way, self._pipes = link, way, pipes
        self._members: dict[int, _Member] = {}
        self._is_ending = False
        self._until = math.inf  # when the members end unless a launcher comes
        self._backlog, self._gone = Backlog(), list[tuple[int, int]]()  # for a launcher that comes
        self._progress: Any = None
        self._answers: Answers | None = None  # of the probe that is under way
        self._interfaces: Sequence[str] = ()  # that members use; none for all

    @property
    def is_over(self) -> bool:
        return self._is_ending and not self._members

    def turn(self, callers: Callers | None, described: Mapping[str, Any]) -> None:
        """Waits for something to do, and does it. Raises: ClosedError if the job is over without a launcher."""
        of_member = {each.ranks.fileno(): each for each in self._members.values()}
        of_control = {each.control.fileno(): each for each in self._members.values() if each.is_connected}
        sources = [*of_member, *of_control, *self._pipes.sources(), *(callers.sources() if callers else ())]
        until = min(self._until, callers.deadline if callers else math.inf)
        try:
            ready = self._link.poll(sources, until - time.monotonic())
        except frames.ClosedError:
            if callers is None or self._is_ending or not self._members:
                raise
            self._detach(callers)
            return
        for source in ready.intersection(self._pipes.sources()):
            if (piece := self._pipes.take(source)) is not None:
                self._pass_on(piece)
        for descriptor in ready.intersection(of_control):
            of_control[descriptor].pass_on(self._link)
        for descriptor in ready.intersection(of_member):
            self._note(of_member[descriptor])
        self._heed_launcher()
        if callers is not None and (offer := callers.note(ready)) is not None:
            self._heed(offer, callers, described)
        if not self._link.is_attached:
            self._pipes.reset_windows([0 for _ in STREAMS])
            if time.monotonic() >= self._until:
                raise frames.ClosedError

    def close(self) -> None:
        """Ends the members that have not ended, and waits for their end."""
        self._end_probe()
        for each in self._members.values():
            each.tell(line_of("over", "the job's launcher is lost; start the job again."))
            each.ranks.end()
        for each in self._members.values():
            each.close()

    def _pass_on(self, piece: Piece) -> None:
        if self._link.is_attached:
            self._link.send_piece(piece)
        else:
            self._backlog.add(piece)

    def _note(self, member: _Member) -> None:
        """Takes news of a member's keeper."""
        if not member.has_ended(self._link):
            return
        for piece in self._pipes.rest(member.number):
            self._pass_on(piece)
        member.memory.send(self._link)
        self._members.pop(member.number).close()
        if self._link.is_attached:
            self._link.send("gone", [member.number, member.status])
        else:
            self._gone.append((member.number, member.status))

    def _heed_launcher(self) -> None:
        received, self._link.received = self._link.received, []
        for kind, value, data in received:
            match kind, value:
                case "add", [number, own] if not self._is_ending:
                    chosen = {**own, **choice(self._interfaces)}
                    self._members[number] = _Member(number, chosen, self._way, self._pipes)
                case "taken", taken:
                    self._pipes.open_windows(taken)
                case "end", _:
                    self._is_ending = True
                    for each in self._members.values():
                        each.ranks.end()
                case "expel", number if number in self._members:
                    self._members[number].ranks.end()
                case "control", number if number in self._members:
                    self._members[number].tell(data)
                case "progress", progress:
                    self._progress = progress
                case "probe", probe:
                    self._begin_probe(probe)
                case "others", others if self._answers is not None:
                    self._answers.look(others)
                case "interfaces", names:
                    self._end_probe()
                    self._interfaces = names or self._interfaces

    def _begin_probe(self, probe: Mapping[str, Any]) -> None:
        from agspeed.launch.reach.answer import Answers  # not above: its imports would make each start slower

        self._end_probe()
        self._answers = Answers(self._link, probe, self._interfaces)

    def _end_probe(self) -> None:
        if self._answers is not None:
            self._answers.close()
        self._answers = None

    # --- without a launcher ---

    def _detach(self, callers: Callers) -> None:
        self._end_probe()
        self._link.detach()
        self._pipes.reset_windows([0 for _ in STREAMS])
        callers.has_launcher = False
        self._until = time.monotonic() + callers.job["grace_s"]

    def _heed(self, offer: Offer, callers: Callers, described: Mapping[str, Any]) -> None:
        """Takes a new launcher. Raises: ClosedError if it wants no members of an earlier one."""
        if offer.job["mode"] == "replace":  # the caller waits for the end of this process
            raise frames.ClosedError
        self._link.attach(offer.link)
        self._link.limit_silence(offer.job["silence_s"])
        self._until, callers.has_launcher = math.inf, True
        callers.job = {**callers.job, **{name: offer.job[name] for name in ("launcher", "agent", "grace_s")}}
        self._link.send("ready", described)
        report = {
            "progress": self._progress,
            "members": [[each.number, each.slot, each.has_spoken] for each in self._members.values()],
            "gone": self._gone,
            "key": callers.job["key"],
            "num_dropped": self._backlog.num_dropped,
        }
        self._link.send("report", report)
        for each in self._members.values():
            each.begin_line()
        self._pipes.reset_windows(self._backlog.sizes)
        for piece in self._backlog.take():
            self._link.send_piece(piece)
        self._gone = []


class _Member:
    """A member on this host. It owns the keeper and both ends of the pipe to the coordinator, until the member has one.

    Attributes:
        number: its id.
        slot: of the slots of this host.
        is_connected: whether the member may still send messages.
        has_spoken: whether it has sent any.
        status: how it has ended, as `Ranks` says it.
        memory: its part of the call, if the job is one.
    """

    def __init__(self, number: int, variables: Mapping[str, str], way: _Way, pipes: Pipes) -> None:
        """variables: of this member alone."""
        self.number, self.slot, self.status = number, int(variables["LOCAL_RANK"]), 0
        self.memory = Memory(way.argument, [number])
        self.is_connected, self.has_spoken = True, False
        self._is_in_line = self._skips = False
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        self._unsent = b""
        pipes.open(number)
        own = {CONTROL_VARIABLE: str(theirs.fileno()), **self.memory.variables(number)}
        passed = [*way.inherited, *self.memory.descriptors, theirs.fileno()]
        with theirs:
            ends = [pipes.rank_ends[number]]
            self.ranks = Ranks(way.command, [{**variables, **way.variables, **own}], ends, passed)
        pipes.close_rank_ends()

    def pass_on(self, link: LauncherLink) -> None:
        """Sends the member's messages to the launcher."""
        try:
            data = self.control.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.is_connected = data != b""
        self.has_spoken |= self.is_connected
        if self._skips:
            _, end, data = data.partition(b"\n")
            self._skips = not end and self.is_connected
        if data:
            self._is_in_line = not data.endswith(b"\n")
            link.send("control", self.number, data)

    def begin_line(self) -> None:
        """Drops the rest of a message whose begin went to an earlier launcher."""
        self._skips |= self._is_in_line

    def tell(self, data: bytes) -> None:
        """Sends the coordinator's messages to the member.

        A thread of the member reads them all the time. If the member is stopped, what its pipe does not take stays here
        until the next message: the coordinator repeats its questions.
        """
        self._unsent += data
        try:
            self._unsent = self._unsent[self.control.send(self._unsent) :]
        except BlockingIOError:
            self.is_connected &= len(self._unsent) <= MOST_BYTES
        except OSError:
            self._unsent = b""

    def has_ended(self, link: LauncherLink) -> bool:
        """Takes news of the keeper. Returns: whether the member has ended, after the launcher got all its messages.

        Raises: UserError if the command cannot be started.
        """
        try:
            self.ranks.note_events()
        except UserError:
            raise
        except AgspeedError:  # the keeper was killed, and the member with it
            self.status = -signal.SIGKILL
        if not self.ranks.is_over:
            return False
        while self.is_connected and self._has_more():
            self.pass_on(link)
        if self.ranks.first_failed is not None:
            self.status = self.ranks.first_failed[1]
        return True

    def close(self) -> None:
        """Ends the member, if it has not ended, and waits for its end."""
        self.control.close()
        self.memory.close()
        with contextlib.suppress(AgspeedError):
            self.ranks.__exit__()

    def _has_more(self) -> bool:
        try:
            return self.control.recv(1, socket.MSG_PEEK) != b""
        except OSError:
            return False
