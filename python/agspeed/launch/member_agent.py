# SPDX-License-Identifier: Apache-2.0
"""The agent's part in an elastic job: it starts and ends single members, and connects them to the coordinator.

Each member has a keeper of its own (`keeper.py`). So the end of one member ends what that member has started, and
nothing else.

Threading: the agent's thread.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Mapping, Sequence

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import frames
from agspeed.launch.launcher_link import LauncherLink
from agspeed.launch.pipes import Pipes
from agspeed.launch.ranks import Ranks
from agspeed.membership.messages import CONTROL_VARIABLE, MOST_BYTES

__all__ = ["run"]

_CHUNK_BYTES = 1 << 16


def run(
    link: LauncherLink, command: Sequence[str], variables: Mapping[str, str], inherited: Sequence[int], pipes: Pipes
) -> None:
    """Starts, follows and ends members, as the launcher says, until it ends the job.

    Args:
        variables: for all members; the launcher sends others for each one.
        inherited: descriptors that members inherit under the same numbers.

    Raises: ClosedError if the launcher or its connection is lost. All members are ended then.
    """
    members: dict[int, _Member] = {}
    is_ending = False
    try:
        while not is_ending or members:
            of_member = {each.ranks.fileno(): each for each in members.values()}
            of_control = {each.control.fileno(): each for each in members.values() if each.is_connected}
            ready = link.poll([*of_member, *of_control, *pipes.sources()])
            for source in ready.intersection(pipes.sources()):
                if (piece := pipes.take(source)) is not None:
                    link.send_piece(piece)
            for descriptor in ready.intersection(of_control):
                of_control[descriptor].pass_on(link)
            for descriptor in ready.intersection(of_member):
                if of_member[descriptor].has_ended(link, pipes):
                    members.pop(of_member[descriptor].number).close()
            received, link.received = link.received, []
            for frame in received:
                is_ending |= frame.kind == "end"
                if frame.kind == "add" and not is_ending:
                    number, own = frame.value
                    members[number] = _Member(number, command, {**own, **variables}, inherited, pipes)
                else:
                    _heed(frame, members, pipes)
    finally:
        for each in members.values():
            each.ranks.end()
        for each in members.values():
            each.close()


def _heed(frame: frames.Frame, members: Mapping[int, _Member], pipes: Pipes) -> None:
    match frame.kind, frame.value:
        case "taken", taken:
            pipes.open_windows(taken)
        case "end", _:
            for each in members.values():
                each.ranks.end()
        case "expel", number if number in members:
            members[number].ranks.end()
        case "control", number if number in members:
            members[number].tell(frame.data)


class _Member:
    """A member on this host. It owns the keeper and both ends of the pipe to the coordinator, until the member has one.

    Attributes:
        number: its id.
        is_connected: whether the member may still send messages.
        status: how it has ended, as `Ranks` says it.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        variables: Mapping[str, str],
        inherited: Sequence[int],
        pipes: Pipes,
    ) -> None:
        self.number, self.is_connected, self.status = number, True, 0
        self.control, theirs = socket.socketpair()
        self.control.setblocking(False)
        self._unsent = b""
        pipes.open(number)
        own = {**variables, CONTROL_VARIABLE: str(theirs.fileno())}
        with theirs:
            ends = [pipes.rank_ends[number]]
            self.ranks = Ranks(command, [own], ends, [*inherited, theirs.fileno()])
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
        if data:
            link.send("control", self.number, data)

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

    def has_ended(self, link: LauncherLink, pipes: Pipes) -> bool:
        """Takes news of the keeper. Returns: whether the member has ended, after the launcher got all it has sent.

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
        for piece in pipes.rest(self.number):
            link.send_piece(piece)
        if self.ranks.first_failed is not None:
            self.status = self.ranks.first_failed[1]
        link.send("gone", [self.number, self.status])
        return True

    def close(self) -> None:
        """Ends the member, if it has not ended, and waits for its end."""
        self.control.close()
        with contextlib.suppress(AgspeedError):
            self.ranks.__exit__()

    def _has_more(self) -> bool:
        try:
            return self.control.recv(1, socket.MSG_PEEK) != b""
        except OSError:
            return False
