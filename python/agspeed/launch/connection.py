# SPDX-License-Identifier: Apache-2.0
"""The launcher's connection to the agent of one host: a program (`starters.py`), and frames over its pipes.

Threading: one thread makes, uses and leaves a `Connection`. If that thread ends, the kernel acts as if the launcher had
died.
"""

from __future__ import annotations

import collections
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import agent, frames, job_key
from agspeed.launch.description import Description
from agspeed.launch.exchange import Call
from agspeed.launch.hosts import Host
from agspeed.launch.install import carried_code
from agspeed.launch.output import Output
from agspeed.launch.pipes import PIPE_BYTES, STREAMS
from agspeed.launch.starters import Starter
from agspeed.parent_death import end_with

__all__ = ["Connection"]

_EXIT_S = 5.0
_ALIVE_S = 5.0
_TAKEN_BYTES = frames.WINDOW_BYTES // 4
_MOST_ERRORS, _LONGEST_ERROR = 40, 1000
_FOLDER = str(Path(__file__).resolve().parents[2])


class Connection:
    """One host's agent, and the program that connects it. Subclasses know the job's frames (`_note_of_job`).

    Attributes:
        loss: what the loss of the host means, for a sentence.
        name: the host, for the begin of a sentence.
        description: what the host has said of itself, once it is ready.
        attempt: a command with which the user can try the way to the host.
        is_over: whether the agent has ended.
        is_lost: whether the connection was lost while the job ended, before the host confirmed its ranks' end.
    """

    loss = "was lost, so the job was ended"
    end_s = 10.0
    """How long the agent may take to end. Ranks have less than 5 s (`keeper.py`); the rest is for the network."""

    def __init__(
        self,
        host: Host,
        name: str,
        starter: Starter,
        output: Output,
        job: Mapping[str, Any],
        code: bytes = b"",
        call: Call | None = None,
    ) -> None:
        """
        Args:
            code: `carried_code.packed()`, for a host that may have no agspeed; empty if it has one.
            call: the call that the job is, if it is one.
        """
        self.host, self.name, self._call = host, name, call
        self.description: Description | None = None
        self.attempt = starter.attempt(host)
        self.is_over = self.is_lost = False
        self._starter, self._output = starter, output
        self._has_started = self._is_ending = self._has_confirmed = False
        self._untaken = [0 for _ in STREAMS]
        self._end_deadline = math.inf
        self._next_alive = math.inf if starter.silence_s is None else time.monotonic() + _ALIVE_S
        words = carried_code.words(code) if code else agent.words(_FOLDER, host.is_local)
        command = starter.command(host, [starter.python, *words])
        self._process = _run(command, () if host.is_local else job_key.NAMES)
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._process.stdin as its_input, self._process.stdout as its_output:  # the process ends with its input
            try:
                source, sink = os.dup(its_output.fileno()), os.dup(its_input.fileno())
            except OSError as error:
                text = f"{name} cannot be connected: {error.strerror}; raise the limit of open files (ulimit -n)."
                raise AgspeedError(text) from None
        self._link = frames.Link(source, sink, frames.MOST_AGENT_BYTES)
        self._errors = _Errors(self._process)
        self._link.send_code(code)
        pieces = [] if call is None else call.pieces()
        self._link.send("job", {**job, "silence_s": starter.silence_s, "num_pieces": len(pieces)})
        for piece in pieces:
            self._link.send("argument", 0, piece)

    @property
    def deadline(self) -> float:
        """When `note` has something to do at the latest (time.monotonic())."""
        return min(self._end_deadline, self._next_alive)

    def events(self) -> dict[int, int]:
        """The descriptors to wait for before `note`, with their events for select.poll()."""
        return {} if self.is_over else self._link.events() | self._errors.events()

    def note(self, ready: Collection[int]) -> None:
        """Takes what has come. Raises: AgspeedError if the host has failed."""
        if self.is_over:
            return
        self._errors.read(ready)
        self._link.send_rest()
        try:
            for frame in self._link.receive():
                self._note(frame)
        except frames.FrameError as error:
            self.kill()
            raise self._garbage(error) from None
        except frames.ClosedError:
            self._note_end()
        self._take()
        self._keep_up(time.monotonic())

    def end(self) -> None:
        """Ends the ranks there: SIGTERM, then SIGKILL after some seconds. Does not wait for the end."""
        if self.is_over or self._is_ending:
            return
        self._is_ending = True
        self._end_deadline = time.monotonic() + self.end_s
        if self._has_started:
            self._link.send("end", 0)
        else:
            self._link.close_sink()
            self._process.terminate()  # ssh may still be connecting

    def kill(self) -> None:
        """Gives the host up. Its agent ends its ranks when its stdin ends."""
        self._link.close_sink()
        self._process.kill()
        self._process.wait()
        self.is_lost = self._is_ending and self._has_started and not self._has_confirmed
        self.is_over = True

    def close(self) -> None:
        self._link.close()
        self._errors.close()

    def _note_of_job(self, frame: frames.Frame) -> None:
        """Takes a frame that depends on the kind of job. Raises: FrameError for an unknown one."""
        raise NotImplementedError

    def _note(self, frame: frames.Frame) -> None:
        match frame.kind, frame.value:
            case "ready", dict() if self.description is None:
                self.description = Description.of(frame.value)
            case "over", 0 if self._has_started:
                self._has_confirmed = True
            case "error", [str(sentence), bool(is_users)]:
                self._has_confirmed = True
                if not self._is_ending:
                    text = sentence if self.host.is_local else f"{self.name}: {sentence}"
                    raise UserError(text) if is_users else AgspeedError(text)
            case _:
                self._note_of_job(frame)

    def _pass_on(self, rank: int, stream: int, data: bytes, num_ranks: int) -> None:
        """Takes output. rank: its number in the job; num_ranks: how many run on this host."""
        self._untaken[stream] += len(data)
        if self._untaken[stream] > frames.WINDOW_BYTES + num_ranks * PIPE_BYTES:
            raise frames.FrameError("more output than it may send")
        self._output.add(rank, stream, data)

    def _take(self) -> None:
        """Lets the agent send more, unless our own reader is slow."""
        ready = [
            size if size >= _TAKEN_BYTES and not self._output.is_full(stream) else 0
            for stream, size in enumerate(self._untaken)
        ]
        if any(ready):
            self._untaken = [size - taken for size, taken in zip(self._untaken, ready, strict=True)]
            self._link.send("taken", ready)

    def _keep_up(self, now: float) -> None:
        if now >= self._next_alive:
            self._next_alive = now + _ALIVE_S
            self._link.send("alive", 0)
        if now >= self._end_deadline and not self.is_over:
            self.kill()

    def _note_end(self) -> None:
        """Called when the connection has ended. Raises: AgspeedError if the job still needs it."""
        try:
            status = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._errors.read()
        self.is_over = True
        self.is_lost = self._is_ending and self._has_started and not self._has_confirmed
        if self._has_confirmed or self._is_ending:
            return
        reason = self._starter.reason(self.host, status, self._errors.lines())
        if self._has_started:
            raise AgspeedError(f"{self.name} {self.loss}: {reason}.")
        raise AgspeedError(f"{self.name} cannot be reached: {reason}.")

    def _garbage(self, error: frames.FrameError) -> AgspeedError:
        return AgspeedError(
            f"{self.name} sent something else than the agent's frames: {error}; programs that run before it there, "
            "such as .bashrc, must print nothing if there is no terminal."
        )


class _Errors:
    """The last lines of a process's stderr."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        self._is_open = True
        self._text = b""
        os.set_blocking(self._stream.fileno(), False)

    def events(self) -> dict[int, int]:
        return {self._stream.fileno(): select.POLLIN} if self._is_open else {}

    def read(self, ready: Collection[int] | None = None) -> None:
        if not self._is_open or (ready is not None and self._stream.fileno() not in ready):
            return
        data = self._stream.read(1 << 16)
        self._is_open = data != b""
        lines = (self._text + (data or b"")).split(b"\n")[-_MOST_ERRORS:]
        self._text = b"\n".join(line[:_LONGEST_ERROR] for line in lines)

    def lines(self) -> list[str]:
        lines = self._text.decode("utf-8", "replace").splitlines()
        return list(collections.deque((line.strip() for line in lines if line.strip()), _MOST_ERRORS))

    def close(self) -> None:
        self._stream.close()
        self._is_open = False


def _run(command: Sequence[str], without: Collection[str]) -> subprocess.Popen[bytes]:
    """Runs a command that ends with this thread, in a session of its own, where no signal of a terminal reaches it.

    without: variables that it does not get.
    """
    launcher = os.getpid()
    environment = {name: value for name, value in os.environ.items() if name not in without}
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            preexec_fn=lambda: end_with(launcher, signal.SIGTERM),
        )
    except (FileNotFoundError, PermissionError) as error:
        raise UserError(f"cannot start {command[0]}: {error.strerror}; install it, or put it on PATH.") from None
    except OSError as error:
        raise AgspeedError(
            f"cannot start {command[0]}: {error.strerror}; see what this host has too little of."
        ) from None
