# SPDX-License-Identifier: Apache-2.0
"""Tasks on the hosts: a command or a forked Python function per host, and the job that holds the tasks of one start.

Every task leads a process group of its own, so that a signal reaches all processes of the task, and never this process.
The process that leads the group ends together with the thread that started it.
Thread-safety: a job belongs to the thread that started it; only `on_line` runs on other threads.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

from agspeed.netbed import system
from agspeed.parent_death import end_with

__all__ = ["Call", "Command", "Job", "Outcome", "Task"]

_KEPT_CHARACTERS = 1 << 20
_TAIL_LINES = 30
_DRAIN_LIMIT_S = 1.0
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


@dataclass(frozen=True)
class Outcome:
    """How a host's task ended: its exit code (-9 after SIGKILL), the end of its output, and a function's result."""

    host: int
    code: int
    output: str
    value: Any = None

    def failure(self) -> str:
        tail = "\n".join(self.output.splitlines()[-_TAIL_LINES:])
        ended = f"host {self.host} ended with {self.code}"
        return f"{ended}, its output ends with:\n{tail}" if tail else ended


class Task(Protocol):
    """One host's running command or function."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout_s: float) -> Outcome | None:
        """Returns the outcome, or None if the task still runs after that time. A stopped task still runs."""


class Command:
    """A command on a host, in the form of `system.on_host`. A thread collects its output, standard error included."""

    def __init__(
        self,
        host: int,
        command: Sequence[str],
        env: Mapping[str, str],
        on_line: Callable[[int, str], None] | None,
    ) -> None:
        self._host = host
        self._on_line = on_line
        self._lines: collections.deque[str] = collections.deque()
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float) -> Outcome | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout_s)
            _signal_group(self.pid, signal.SIGKILL)  # processes that it left behind would hold the pipe open
            self._reader.join(_DRAIN_LIMIT_S)
            return Outcome(self._host, code, "".join(self._lines.copy()))
        return None

    def _collect(self) -> None:
        assert self._process.stdout is not None
        kept = 0
        with self._process.stdout as lines:
            for line in lines:
                self._lines.append(line)
                kept += len(line)
                while kept > _KEPT_CHARACTERS:
                    kept -= len(self._lines.popleft())
                if self._on_line:
                    self._on_line(self._host, line.rstrip("\n"))


class Call:
    """A Python function in a forked process in a host's namespace."""

    def __init__(self, host: int, namespace: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._host = host
        context = multiprocessing.get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_call, args=(os.getpid(), sender, namespace, function, arguments), daemon=True
        )
        self._process.start()
        sender.close()
        with contextlib.suppress(OSError):  # also done in the child, so that it is done before any signal
            os.setpgid(self.pid, self.pid)
        self._answer: tuple[Any, str] | None = None

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout_s: float) -> Outcome | None:
        deadline = time.monotonic() + timeout_s
        if self._answer is None:
            if not self._receiver.poll(timeout_s):
                return None
            try:
                self._answer = self._receiver.recv()
            except EOFError:  # it ended without an answer
                self._answer = (None, "")
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.exitcode is None:
            return None
        _signal_group(self.pid, signal.SIGKILL)
        value, output = self._answer
        return Outcome(self._host, self._process.exitcode, output, value)


@dataclass
class Job:
    """The tasks of one start, by host."""

    tasks: dict[int, Task] = field(default_factory=dict)
    _ended: dict[int, Outcome] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether all tasks have ended."""
        return all(self._outcome(host, 0.0) is not None for host in self.tasks)

    def wait(self, timeout_s: float = 60.0, *, check: bool = False) -> list[Outcome]:
        """Waits for all tasks.

        Raises NetbedError if some tasks still run after that time, and ends them. With `check`, it also raises
        NetbedError if some tasks ended with another code than 0.
        """
        deadline = time.monotonic() + timeout_s
        late = [host for host in self.tasks if not self._outcome(host, max(0.0, deadline - time.monotonic()))]
        failures = []
        if late:
            self.end()
            failures.append(f"hosts {late} were not done after {timeout_s:g} s and were ended")
        done = self._ended.values()
        failures += [outcome.failure() for outcome in done if outcome.host in late or (check and outcome.code)]
        if failures:
            raise system.NetbedError("\n".join(failures))
        return [self._ended[host] for host in self.tasks]

    def kill(self, host: int) -> None:
        """Sends SIGKILL to all processes of the host's task."""
        self._signal(host, signal.SIGKILL)

    def stop(self, host: int) -> None:
        """Sends SIGSTOP: the host's task freezes, but its connections stay."""
        self._signal(host, signal.SIGSTOP)

    def resume(self, host: int) -> None:
        self._signal(host, signal.SIGCONT)

    def end(self) -> None:
        """Kills the tasks that still run, and collects their outcomes."""
        for host in self.tasks:
            self._signal(host, signal.SIGKILL)
        for host in self.tasks:
            self._outcome(host, _DRAIN_LIMIT_S)

    def _outcome(self, host: int, timeout_s: float) -> Outcome | None:
        if host not in self._ended:
            outcome = self.tasks[host].wait(timeout_s)
            if outcome is None:
                return None
            self._ended[host] = outcome
        return self._ended[host]

    def _signal(self, host: int, number: int) -> None:
        if host not in self._ended:
            _signal_group(self.tasks[host].pid, number)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _call(
    parent: int, sender: Connection, namespace: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """The child's side of `Call`: sends (value, "") and exits with 0, or sends (None, traceback) and exits with 1."""
    end_with(parent)
    os.setpgid(0, 0)
    try:
        _enter(namespace)
        sender.send((function(*arguments), ""))
    except BaseException:
        sender.send((None, traceback.format_exc()))
        raise SystemExit(1) from None


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}") as handle:
        if libc.setns(handle.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")
