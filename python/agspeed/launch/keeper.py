# SPDX-License-Identifier: Apache-2.0
"""The process between an agent and its ranks: it starts ranks, reports their ends in order, and ends the rest.

    agent -> keeper -> ranks -> processes that ranks start

An agent that is killed cannot end its ranks itself, so the keeper does. The keeper is in a session of its own, where
no signal of a terminal reaches it. The kernel sends SIGTERM to the keeper when the agent dies, and SIGKILL to the
ranks when the keeper dies. Processes that lose their parent become children of the keeper, in any session. So the
keeper finds all processes that ranks have started.

`agspeed.launch.ranks` runs this file as a script without site packages, so it uses only the standard library. The
keeper reads the job from stdin, as JSON, and writes one line of JSON for each event:

    {"command": ["python", "x.py"], "ranks": [{"variables": {"RANK": "0"}, "outputs": [7, 8]}], "inherited": [5]}

    {"started": [4711]}    process ids, by rank
    {"ended": 0, "status": 7}    in the order of death; the exit code, or minus the signal
    {"error": "No such file or directory"}    the command cannot be started

When a rank fails, or on SIGTERM, the keeper sends SIGTERM to the remaining ranks and the processes that they have
started. Processes that still run after `GRACE_S` get SIGKILL. If all ranks succeed, processes that they leave behind
keep running.

Threading: one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["GRACE_S", "Process", "kill", "processes"]

GRACE_S = 3.0
_KILLED_S = 1.0  # time for the kernel to end killed processes; one that waits for a device may take longer
_POLL_S = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


class Process(NamedTuple):
    parent: int
    session: int


def processes() -> dict[int, Process]:
    """All processes that have not ended, by process id."""
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            text = file.read()
            # The process name before the last ")" may contain any byte.
            state, parent, _, session = text[text.rindex(b")") + 2 :].split()[:4]
            if state not in (b"Z", b"X"):
                found[int(name)] = Process(int(parent), int(session))
    return found


def kill(pids: Iterable[int], number: int) -> None:
    """Sends a signal to the processes that exist and that this user may signal."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class _Keeper:
    """Runs one job. events: the descriptor that events are written to."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._must_end = False
        self._living: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._sessions: list[int] = []  # the ranks' sessions; each rank begins one
        self._ids: dict[int, int] = {}  # process ids of ranks, by their pidfds
        self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poller = select.epoll()
        self._poller.register(self._wake, select.EPOLLIN)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._ask_for_end)

    def run(self, job: Mapping[str, Any]) -> None:
        """Returns when all ranks have ended, and all processes that must end with them."""
        try:
            self._start(job)
        except OSError as error:
            self._say({"error": error.strerror or str(error)})
            self._must_end = True
        while self._living and not self._must_end:
            self._wait(None)
        if self._must_end:
            self._end()

    def _ask_for_end(self, *_: object) -> None:
        self._must_end = True

    def _say(self, event: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the agent has died
            os.write(self._events, json.dumps(event).encode() + b"\n")

    def _start(self, job: Mapping[str, Any]) -> None:
        own = os.getpid()

        def die_with_keeper() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != own:
                os._exit(1)

        for number, rank in enumerate(job["ranks"]):
            process = subprocess.Popen(
                job["command"],
                env=os.environ | rank["variables"],
                stdin=subprocess.DEVNULL,
                stdout=rank["outputs"][0],
                stderr=rank["outputs"][1],
                pass_fds=job["inherited"],
                start_new_session=True,
                preexec_fn=die_with_keeper,
            )
            self._living[process.pid] = number, process
            self._sessions.append(process.pid)
            with contextlib.suppress(OSError, AttributeError):  # a kernel or a Python without pidfds
                descriptor = os.pidfd_open(process.pid)
                self._ids[descriptor] = process.pid
                self._poller.register(descriptor, select.EPOLLIN)
        for descriptor in {each for rank in job["ranks"] for each in rank["outputs"] if each > 2}:
            os.close(descriptor)  # the agent sees the end of a pipe once all writers have closed it
        self._say({"started": self._sessions})

    def _wait(self, seconds: float | None) -> None:
        """Waits for the end of a process, or a signal. Unlike waitid, the poller keeps the order in which ranks die."""
        for descriptor, _ in self._poller.poll(seconds):
            if descriptor == self._wake:
                os.read(self._wake, 1 << 16)
                continue
            self._poller.unregister(descriptor)
            os.close(descriptor)
            self._note_end(self._ids.pop(descriptor))
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid not in self._living:
                    os.waitpid(found.si_pid, 0)  # a process that had lost its parent
                elif found.si_pid in self._ids.values():
                    return
                else:
                    self._note_end(found.si_pid)

    def _note_end(self, pid: int) -> None:
        number, process = self._living.pop(pid)
        status = process.wait()
        self._say({"ended": number, "status": status})
        self._must_end |= status != 0

    def _end(self) -> None:
        deadline = time.monotonic() + GRACE_S
        kill((pid for pid, each in _descendants().items() if each.session in self._sessions), signal.SIGTERM)
        has_asked_rest = False
        while left := _descendants():
            now = time.monotonic()
            if now >= deadline + _KILLED_S:
                return
            if now >= deadline:
                kill(left, signal.SIGKILL)
            elif not self._living and not has_asked_rest:
                has_asked_rest = True
                kill((pid for pid, each in left.items() if each.session not in self._sessions), signal.SIGTERM)
            self._wait(_POLL_S)
        self._wait(0)


def _descendants() -> dict[int, Process]:
    """The processes that this process has started, directly or indirectly."""
    found = processes()
    children: dict[int, list[int]] = {}
    for pid, process in found.items():
        children.setdefault(process.parent, []).append(pid)
    ids = children.get(os.getpid(), [])
    for pid in ids:
        ids += children.get(pid, [])
    return {pid: found[pid] for pid in ids}


def main(arguments: Sequence[str]) -> int:
    """Keeps a job. arguments: the agent's process id, and the descriptor for events."""
    agent, events = map(int, arguments)
    os.set_inheritable(events, False)
    keeper = _Keeper(events)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != agent:
        return 1
    try:
        job = json.load(sys.stdin)
    except ValueError:
        return 1  # the agent has died
    keeper.run(job)
    os._exit(0)  # a normal exit would remove the handlers first, but the agent may send SIGTERM at any time


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
