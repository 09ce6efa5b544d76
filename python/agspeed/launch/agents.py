# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of the agents of a job, one per host (`agent.py`).

The ranks start when all agents are ready, so a host that cannot be reached ends the job before any rank has run. The
first rank that fails ends the ranks of all hosts. Agents are checked as strangers are: their frames have bounds, and
their values have the expected types and ranges.

Threading: one thread makes and leaves `Agents`. If that thread ends, the kernel acts as if the launcher had died.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import agent, frames, job_key
from agspeed.launch.description import Description, address_of_first
from agspeed.launch.output import Output
from agspeed.launch.pipes import PIPE_BYTES, STREAMS
from agspeed.launch.placement import Share, variables
from agspeed.launch.starters import Starter
from agspeed.parent_death import end_with

__all__ = ["Agents", "Plan"]

_END_S = 10.0  # ranks have less than 5 s (keeper.py); the rest is for the network
_EXIT_S = 5.0
_ALIVE_S = 5.0
_TAKEN_BYTES = frames.WINDOW_BYTES // 4
_MOST_ERRORS, _LONGEST_ERROR = 40, 1000
_FOLDER = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Plan:
    """The job, as the agents of all hosts run it.

    Attributes:
        shares: the hosts, with their ranks.
        starters: by host, in the order of `shares`.
        jobs: by host, the agent's "job".
        variables: every rank gets them.
        master_address: where rank 0 listens; None for an address that the agents report.
    """

    shares: Sequence[Share]
    starters: Sequence[Starter]
    jobs: Sequence[Mapping[str, Any]]
    variables: Mapping[str, str]
    master_address: str | None
    start_timeout_s: float


class Agents:
    """The agents of all hosts; a context manager. Leaving it ends the ranks that still run, and waits for their end.

    Attributes:
        first_failed: the first rank that ended with another status than 0, and that status (minus the signal).
        notes: sentences for the user, of which the job does not fail.
    """

    def __init__(self, plan: Plan, output: Output) -> None:
        self.first_failed: tuple[int, int] | None = None
        self.notes: list[str] = []
        self._plan, self._output = plan, output
        self._agents: list[_Agent] = []
        self._has_started = self._is_ending = False
        self._start_deadline = time.monotonic() + plan.start_timeout_s

    def __enter__(self) -> Self:
        try:
            for share, starter, job in zip(self._plan.shares, self._plan.starters, self._plan.jobs, strict=True):
                self._agents.append(_Agent(share, starter, self._output, job))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        while not self.are_over:
            ready = self._output.wait(self.events(), self.seconds_left())
            for each in self._agents:
                try:
                    each.note(ready)
                except AgspeedError:  # the job has ended for another reason
                    each.kill()
        for each in self._agents:
            each.close()
            if each.is_lost:
                self.notes.append(f"{each.share} did not confirm the end of its ranks; look for processes there.")

    @property
    def are_over(self) -> bool:
        """Whether all agents have ended, and with them all ranks."""
        return all(each.is_over for each in self._agents)

    def events(self) -> dict[int, int]:
        """The descriptors to wait for before `note`, with their events for select.poll()."""
        return {descriptor: event for each in self._agents for descriptor, event in each.events().items()}

    def seconds_left(self) -> float:
        """After which time `note` has to be called, even if nothing happens."""
        deadlines = [each.deadline for each in self._agents if not each.is_over]
        if not self._has_started and not self._is_ending:
            deadlines.append(self._start_deadline)
        return max(0.0, min(deadlines, default=math.inf) - time.monotonic())

    def note(self, ready: Collection[int]) -> None:
        """Takes frames, starts the ranks once all hosts are ready, and ends them after the first failure.

        Raises: AgspeedError if a host cannot be reached, cannot start its ranks, or is lost; it names host and ranks.
        """
        for each in self._agents:
            each.note(ready)
            if self.first_failed is None:
                self.first_failed = each.first_failed
        if self.first_failed is not None:
            self.end()
        if not self._has_started and not self._is_ending:
            self._start()

    def end(self) -> None:
        """Ends the ranks of all hosts: SIGTERM, then SIGKILL after some seconds. Does not wait for the end."""
        self._is_ending = True
        for each in self._agents:
            each.end()

    def _start(self) -> None:
        """Starts the ranks if all agents are ready."""
        waiting = [each.share for each in self._agents if each.description is None]
        if not waiting:
            self._has_started = True
            self._start_ranks([each.description for each in self._agents if each.description is not None])
            return
        remote = [share for share in waiting if not share.host.is_local]
        if remote and time.monotonic() >= self._start_deadline:
            raise AgspeedError(
                f"{remote[0]} was not ready after {self._plan.start_timeout_s:g} s; check that the host is up and that "
                f"`ssh {remote[0].host.name} true` is quick, or raise --start-timeout."
            )

    def _start_ranks(self, described: Sequence[Description]) -> None:
        shares, given = self._plan.shares, self._plan.master_address
        for share, description, job in zip(shares, described, self._plan.jobs, strict=True):
            description.check_version(share)
            if description.folder:
                self._output.write_note(
                    f"{share} has no folder {job['folder']}, so its ranks run in {description.folder}"
                )
        address = given or address_of_first(shares, described)
        for each in self._agents:
            own = [variables(shares, rank, address, described[0].port) for rank in each.share.ranks]
            each.start([{**self._plan.variables, **of_rank} for of_rank in own])


class _Agent:
    """The agent of one host, and the program that connects it (`starters.py`).

    Attributes:
        description: what the host has said of itself, once it is ready.
        deadline: when `note` has something to do at the latest (time.monotonic()).
        is_lost: whether the connection was lost while the job ended, before the host confirmed its ranks' end.
    """

    def __init__(self, share: Share, starter: Starter, output: Output, job: Mapping[str, Any]) -> None:
        self.share = share
        self.description: Description | None = None
        self.first_failed: tuple[int, int] | None = None
        self.is_over = self.is_lost = False
        self._starter, self._output = starter, output
        self._has_started = self._is_ending = self._has_confirmed = False
        self._untaken = [0 for _ in STREAMS]
        self._end_deadline = math.inf
        self._next_alive = math.inf if starter.silence_s is None else time.monotonic() + _ALIVE_S
        command = starter.command(share.host, [starter.python, *agent.words(_FOLDER, share.host.is_local)])
        self._process = _run(command, () if share.host.is_local else job_key.NAMES)
        assert self._process.stdin is not None and self._process.stdout is not None
        source, sink = os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno())
        self._process.stdout.close()
        self._process.stdin.close()
        self._link = frames.Link(source, sink, frames.MOST_AGENT_BYTES)
        self._errors = _Errors(self._process)
        self._link.send("job", {**job, "silence_s": starter.silence_s})

    @property
    def deadline(self) -> float:
        return min(self._end_deadline, self._next_alive)

    def events(self) -> dict[int, int]:
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

    def start(self, ranks: Sequence[Mapping[str, str]]) -> None:
        self._has_started = True
        self._link.send("start", [dict(each) for each in ranks])

    def end(self) -> None:
        if self.is_over or self._is_ending:
            return
        self._is_ending = True
        self._end_deadline = time.monotonic() + _END_S
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

    def _note(self, frame: frames.Frame) -> None:
        ranks = self.share.ranks if self._has_started else range(0)
        match frame.kind, frame.value:
            case "output", [int(rank), 0 | 1 as stream] if 0 <= rank < len(ranks):
                self._pass_on(ranks[rank], stream, frame.data)
            case "failed", [int(rank), int(status)] if 0 <= rank < len(ranks) and -128 < status < 256 and status:
                self.first_failed = self.first_failed or (ranks[rank], status)
            case "ready", dict() if self.description is None:
                self.description = Description.of(frame.value)
            case "over", 0 if self._has_started:
                self._has_confirmed = True
            case "error", [str(sentence), bool(is_users)]:
                self._has_confirmed = True
                if not self._is_ending:
                    text = sentence if self.share.host.is_local else f"{self.share}: {sentence}"
                    raise UserError(text) if is_users else AgspeedError(text)
            case _:
                raise frames.FrameError(repr(frame.kind[:60]))

    def _pass_on(self, rank: int, stream: int, data: bytes) -> None:
        self._untaken[stream] += len(data)
        if self._untaken[stream] > frames.WINDOW_BYTES + len(self.share.ranks) * PIPE_BYTES:
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
        reason = self._starter.reason(self.share.host, status, self._errors.lines())
        if self._has_started:
            raise AgspeedError(f"{self.share} was lost, so the job was ended: {reason}.")
        raise AgspeedError(f"{self.share} cannot be reached: {reason}.")

    def _garbage(self, error: frames.FrameError) -> AgspeedError:
        return AgspeedError(
            f"{self.share} sent something else than the agent's frames: {error}; programs that run before it there, "
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
    except OSError as error:
        raise UserError(f"cannot start {command[0]}: {error.strerror}; install it, or put it on PATH.") from None
