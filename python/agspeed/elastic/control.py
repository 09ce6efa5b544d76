# SPDX-License-Identifier: Apache-2.0
"""A member's side of the pipe to the coordinator of its job (`membership/messages.py`).

While no launcher is there, messages are lost. A new launcher asks for a report, which has all that they have said.

Threading: a thread of its own reads messages and answers questions at once, whatever the training does. Any thread may
call the functions.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from typing import Any

from agspeed.errors import AgspeedError, UserError
from agspeed.membership.coordinator import Position, Report
from agspeed.membership.messages import CONTROL_VARIABLE, Lines, MessageError, Place, line_of, words_of

__all__ = ["BrokenEpochError", "Control", "of_this_process"]

_CHUNK_BYTES = 1 << 16
_libc = ctypes.CDLL(None)


class BrokenEpochError(Exception):
    """The epoch has lost a member, or is over."""


class Control:
    """The connection of this process. It owns `descriptor`.

    Attributes:
        is_over: whether the job is over, or this process has left it.
    """

    def __init__(self, descriptor: int) -> None:
        self.is_over = False
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._changed = threading.Condition()
        self._place: Place | None = None
        self._asked: int | None = None  # the epoch that the coordinator wants to change
        self._asked_at: float | None = None
        self._is_broken = False
        self._error = ""
        self._ends_by: signal.Signals | None = None
        self._answers: dict[int, tuple[bool, Any]] = {}
        self._num_requests = self._num_waiting = 0  # of requests to the store
        self._sending = threading.Lock()
        self._said = Report()  # what the coordinator knows after all messages so far; `_sending` guards it
        self._summary = ""
        threading.Thread(target=self._read, name="agspeed-control", daemon=True).start()

    def end_main_thread_by(self, number: signal.Signals | None) -> None:
        """Lets the handler of a signal run in the main thread when the job cannot go on."""
        self._ends_by = number

    @property
    def wants_change(self) -> bool:
        """Whether this process has to be ready for another epoch."""
        return self._asked is not None

    @property
    def noticed_at(self) -> float:
        """When the coordinator has asked for another epoch (time.monotonic()); else the present time."""
        return time.monotonic() if self._asked_at is None else self._asked_at

    def next_place(self, epoch: int, position: Position) -> Place | None:
        """Waits for the epoch that follows `epoch`. Returns: this process's place in it; None if the job is over.

        Raises: AgspeedError with the reason, if the job cannot go on.
        """
        with self._changed:
            self._asked, self._asked_at, self._is_broken = None, None, False
        self._send("ready", [epoch, position.has_state, position.step, position.is_done], waiting=position)
        # The buffers of the last group are free now. Without this call, resident memory grows with each change of the
        # group. It takes 1 or 2 ms, while the answer is under way.
        _libc.malloc_trim(0)
        with self._changed:
            self._changed.wait_for(lambda: self.is_over or (self._place is not None and self._place.number > epoch))
            if self._error:
                raise AgspeedError(self._error)
            return None if self.is_over else self._place

    def synced(self, epoch: int) -> None:
        self._send("synced", epoch, is_synced=True)

    def lost(self, epoch: int) -> None:
        self._send("lost", epoch, wants_change=True, is_broken=True)

    def leave(self) -> None:
        """Asks to leave the job. The answer comes to `next_place`."""
        self._send("leave", 0, is_leaving=True)

    def sum_up(self, sentence: str) -> None:
        """Gives the launcher a sentence for the end of the job."""
        self._summary = sentence
        self._send("summary", sentence)

    def ask(self, epoch: int, operation: str, arguments: list[Any]) -> Any:
        """Executes an operation of the epoch's store. Raises: BrokenEpochError if the epoch has lost a member."""
        with self._changed:
            self._num_requests += 1
            self._num_waiting += 1
            request = self._num_requests
        self._send("ask", [request, epoch, operation, arguments])
        with self._changed:
            self._changed.wait_for(lambda: request in self._answers or self._is_broken or self.is_over)
            self._num_waiting -= 1
            if request not in self._answers:
                raise BrokenEpochError(f"epoch {epoch} has lost a member")
            is_ok, value = self._answers.pop(request)
        if not is_ok:
            raise BrokenEpochError(str(value))
        return value

    def _send(self, kind: str, value: Any, **news: Any) -> None:
        """Sends a message. news: what the message says, as attributes of a `Report`."""
        with self._sending:
            self._said = replace(self._said, **news)
            self._write(kind, value)

    def _report(self) -> None:
        """Describes this process to a new coordinator. The answers to requests at the earlier one do not come."""
        with self._sending:
            is_broken = self._said.is_broken or self._is_broken or self._num_waiting > 0
            wants_change = self._said.wants_change or self.wants_change
            found = replace(self._said, is_broken=is_broken, wants_change=wants_change)
            if self._summary:
                self._write("summary", self._summary)
            self._write("report", words_of(found))

    def _write(self, kind: str, value: Any) -> None:
        try:
            self._socket.sendall(line_of(kind, value))
        except OSError:
            self._note_loss()

    def _read(self) -> None:
        lines = Lines()
        while True:
            try:
                data = self._socket.recv(_CHUNK_BYTES)
                for kind, value in lines.add(data):
                    self._note(kind, value)
            except (MessageError, OSError):
                data = b""
            if not data:
                self._note_loss()
                return

    def _note(self, kind: str, value: Any) -> None:
        if kind == "epoch":
            value = Place.of(value)
            with self._sending:  # not below, because a thread that sends may wait for `_changed`
                own = Report(value.number, value.rank, value.size)
                self._said = replace(own, is_leaving=self._said.is_leaving)
        with self._changed:
            match kind, value:
                case "epoch", Place():
                    self._place = value
                    self._asked, self._asked_at, self._is_broken, self._answers = None, None, False, {}
                case "change", int(is_broken):
                    self._asked = self._place.number if self._place is not None else 0
                    self._asked_at = self.noticed_at
                    self._is_broken |= bool(is_broken)
                case "release", _:
                    self.is_over = True
                case "over", str(reason):
                    self.is_over, self._error = True, reason
                    if reason and self._ends_by is not None:
                        _thread.interrupt_main(self._ends_by)
                case "answer", [int(request), bool(is_ok), found]:
                    self._answers[request] = is_ok, found
            self._changed.notify_all()
        if kind == "change":
            self._send("alive", 0)
        elif kind == "report":
            self._report()

    def _note_loss(self) -> None:
        with self._changed:
            if not self.is_over:
                self.is_over, self._error = True, "the job's launcher is lost; start the job again."
            self._changed.notify_all()


_control: Control | None = None


def of_this_process() -> Control | None:
    """Returns the connection of this process; None if it belongs to no elastic job."""
    global _control
    if _control is None and CONTROL_VARIABLE in os.environ:
        text = os.environ.pop(CONTROL_VARIABLE)
        if not _is_ours(text):
            raise UserError(
                f"{CONTROL_VARIABLE}={text} is not this process's connection to its job: only the program that "
                "`agspeed run` starts belongs to an elastic job. Unset the variable for programs that it starts itself."
            )
        _control = Control(int(text))
    return _control


def _is_ours(text: str) -> bool:
    """Whether the descriptor is a socket like the ones that agents make: a program in between may have closed ours."""
    try:
        with socket.socket(fileno=os.dup(int(text))) as found:
            return found.family == socket.AF_UNIX
    except (OSError, ValueError):
        return False
