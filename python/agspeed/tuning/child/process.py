# SPDX-License-Identifier: Apache-2.0
"""The training process's side of the compile child: starts it, feeds it jobs, reads its answers, survives its death.

The child is exec'd and never just forked, because a fork after OpenMP has started hangs. It runs at idle priority
unless its level is raised. Jobs run one after another. If the child dies, stops answering or exceeds a job's time
limit, that job fails with the reason, and a new child takes the remaining jobs. Jobs also fail if the machine has no
room for a child (memory, disk, descriptors). Single-threaded: the training thread calls all methods. `poll` never
blocks.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from agspeed import config
from agspeed.backends import CompileOptions
from agspeed.log import logger
from agspeed.private_folder import PrivateFolder
from agspeed.torch_compat import compiler_cache
from agspeed.tuning.child import answers
from agspeed.tuning.child.answers import Answer
from agspeed.tuning.child.child_log import ChildLog

DEFAULT_TIMEOUT_S = 600.0
WORKER = "agspeed.tuning.child.worker"
"""The module that a child runs."""
_MAX_ANSWER_BYTES = 1 << 24
_LAST_WORDS_S = 0.5
GUARDED = {"guarded": True}
"""A child's first message: from now on it ends together with the training process, even while it is stopped."""
_BEGIN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""A child's first code: it reads sys.path from its arguments as JSON, because PYTHONPATH cannot hold a path with ":".
"""
_living: weakref.WeakSet[Child] = weakref.WeakSet()


@dataclass
class Job:
    """One candidate to compile for one region. `answer` is None until the job is done."""

    candidate: str
    region: BinaryIO
    """See `write_region`; open until the job is done."""
    options: CompileOptions
    timeout_s: float = DEFAULT_TIMEOUT_S
    answer: Answer | None = None
    started: float | None = field(default=None, repr=False)

    @property
    def done(self) -> bool:
        return self.answer is not None


class Child:
    """The compile child of one training process. `folder` is the child's temporary directory. `close` deletes it, at
    the latest when this process ends.

    Raises: OSError if there is no room for that directory.
    """

    def __init__(self, cache_dir: str = "") -> None:
        """cache_dir: agspeed's cache, in which compilers also store their code."""
        self._cache_dir = cache_dir
        self.folder = PrivateFolder("child")
        try:
            self._log = ChildLog(self.folder.path)
        except OSError:
            self.folder.close()
            raise
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._answers = -1
        self._is_silent = False
        self._buffer = b""
        self._next_id = 0
        self._level = "idle"
        self._may_stop = self._is_stopped = False
        self._stopped_at = 0.0
        self._owner = os.getpid()
        self._is_open = True
        _living.add(self)

    def start(self) -> None:
        """Starts the process before its first job, so that it has loaded its modules when that job arrives."""
        if self._process is None:
            self._spawn("prepare")

    def submit(self, job: Job) -> None:
        """Queues a job; it starts as soon as the child is free."""
        self._queue.append(job)
        self._start_next()

    def poll(self) -> None:
        """Reads the child's answers, and fails the running job if the child has died or exceeded the time limit."""
        self._read()
        with contextlib.suppress(OSError):
            self._log.cut()
        self._start_next()
        job = self._running
        if job is None:
            return
        if self._has_ended():
            self._read()
            if self._running is job:
                self._fail(f"the compile process {self._death()} while compiling or trying it")
        elif not self._is_stopped and time.monotonic() - (job.started or math.inf) > job.timeout_s:
            self._fail(f"compiling and trying it took longer than {job.timeout_s:.0f} s")
        self._start_next()

    def wait(
        self, jobs: list[Job], timeout_s: float | None = None, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Blocks until all `jobs` are done or `timeout_s` is over. Calls `meanwhile` at least every 0.1 s if nothing
        blocks it; it may finish jobs. Ctrl-C raises here, and the child continues.

        The child runs at normal priority during the wait, even if it was suspended, as training does not run meanwhile.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        level = self._level
        try:
            while not all(job.done for job in jobs):
                if deadline is not None and time.monotonic() > deadline:
                    return
                self.set_level("raised")
                may_answer = self._answers >= 0 and not self._is_silent
                select.select([self._answers] if may_answer else [], [], [], 0.1)
                self.poll()
                meanwhile()
        finally:
            self.set_level(level)

    def set_level(self, level: str) -> None:
        """Sets how much of the machine the child may use: "suspended", "idle" or "raised" (normal priority).

        A child is stopped only after its `GUARDED` message, because only then is it woken when this process dies.
        """
        self._level = level
        if self._process is not None and self._code() is None:
            _set_idle(self._process.pid, level != "raised")
            self._stop_or_continue()

    def close(self) -> None:
        """Ends the child and deletes the folder. Harmless in a forked copy of the training process."""
        if os.getpid() != self._owner:
            return
        self._kill()
        self._log.close()
        self.folder.close()
        self._is_open = False

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        if self._running is not None or not self._queue:
            return
        job = self._running = self._queue.popleft()
        job.started = time.monotonic()
        self._next_id += 1
        self._log.begin_job()
        try:
            if self._process is None or self._is_silent or self._code() is not None:
                self._spawn()
            self._tell(job)
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("the compile process closed its input")
        except OSError as error:
            self._fail(f"no compile process could be started: {error}")

    def _tell(self, job: Job) -> None:
        options = dict(vars(job.options)) | {"perf_map": False}  # the child only tries the code
        message = {"id": self._next_id, "candidate": job.candidate, "options": options}
        assert self._channel is not None
        socket.send_fds(self._channel, [json.dumps(message).encode()], [job.region.fileno()])

    def _spawn(self, *arguments: str) -> None:
        self._kill()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._answers, writer = os.pipe()
            self._buffer, self._is_silent = b"", False
            try:
                self._process = subprocess.Popen(
                    [*_python(), WORKER, str(writer), str(self._owner), *arguments],
                    stdin=theirs.fileno(),
                    stdout=self._log.fileno(),
                    stderr=subprocess.STDOUT,
                    pass_fds=[writer, self.folder.descriptor],
                    env=self._environment(),
                    # A process group of its own, so that Ctrl-C reaches training alone. The same session, so that the
                    # group becomes orphaned when training ends: the kernel then sends SIGHUP to stopped members.
                    process_group=0,
                )
            finally:
                os.close(writer)
        os.set_blocking(self._answers, False)
        self._may_stop = self._is_stopped = False
        _set_idle(self._process.pid, self._level != "raised")

    def _read(self) -> None:
        while self._answers >= 0 and not self._is_silent:
            try:
                block = os.read(self._answers, 1 << 16)
            except BlockingIOError:
                break
            self._is_silent = not block
            self._buffer += block
            if len(self._buffer) > _MAX_ANSWER_BYTES and b"\n" not in self._buffer:
                self._buffer, self._is_silent = b"", True
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        """Handles one line from the child. Ignores other text that a candidate writes to the pipe."""
        message = answers.read(line)
        if message == GUARDED:
            self._may_stop = True
            self._stop_or_continue()
            return
        answer = answers.understood(message)
        if answer is None or answer.get("id") != self._next_id:
            logger.debug("the compile process sent %r", line[:80])
        elif self._running is not None:
            self._running.answer = answer
            self._running = None

    def _has_ended(self) -> bool:
        """Returns True if the child has ended or closed its answers, after a short wait for its exit code."""
        if self._process is None:
            return False
        deadline = time.monotonic() + _LAST_WORDS_S
        while self._is_silent and self._code() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._is_silent or self._code() is not None

    def _code(self) -> int | None:
        """Returns the child's exit code, negative for a signal; None while it runs.

        The child is not reaped here, so its process id, which is also its group's id, stays reserved until `_kill`.
        """
        assert self._process is not None
        if self._process.returncode is not None:
            return self._process.returncode
        try:
            end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # other code in this process has reaped it
            return self._process.wait()
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def _death(self) -> str:
        """Returns how the child ended, with the last line that it printed."""
        code = self._code() if self._process is not None else None
        last = self._log.last_line()
        return (_end_of(code) if code is not None else "stopped answering") + (f" ('{last}')" if last else "")

    def _fail(self, reason: str) -> None:
        """Fails the running job for `reason` and kills the child."""
        assert self._running is not None
        self._kill()
        self._running.answer = {"state": "failed", "reason": reason}
        self._running = None

    def _kill(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._signal_group(signal.SIGKILL)  # also kills the child's compilers if the child itself has ended
            self._process.wait()
            self._process = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1

    def _stop_or_continue(self) -> None:
        is_wanted = self._level == "suspended" and self._may_stop
        if is_wanted == self._is_stopped:
            return
        self._is_stopped = is_wanted
        self._signal_group(signal.SIGSTOP if is_wanted else signal.SIGCONT)
        if is_wanted:
            self._stopped_at = time.monotonic()
        elif self._running is not None and self._running.started is not None:
            self._running.started += time.monotonic() - self._stopped_at  # the time limit excludes suspended time

    def _environment(self) -> dict[str, str]:
        """Returns the training process's environment without secrets and with agspeed switched off, for modules that
        use agspeed on import. TMPDIR is the child's folder, so that files of killed compilers are deleted with it.
        Inductor's cache keeps its place.
        """
        environment = compiler_cache.handed_on(config.without_secrets(os.environ), self._cache_dir)
        return environment | {"AGSPEED_DISABLE": "1", "TMPDIR": str(self.folder.path)}

    def _signal_group(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)  # the child's own group, which includes its compilers


def _python() -> list[str]:
    """Returns a Python command line with exactly this process's search path: Python adds neither the working directory
    nor a script's folder."""
    isolation = "-I" if sys.flags.isolated else "-P"
    path = [entry for entry in sys.path if isinstance(entry, str)]  # Python ignores other entries, too
    return [sys.executable or "python3", isolation, "-c", _BEGIN, json.dumps(path)]


@atexit.register
def _close_all() -> None:
    for child in list(_living):
        child.close()


def _set_idle(pid: int, idle: bool) -> None:
    """Sets idle or normal scheduling for the child, as far as the system allows it."""
    try:
        os.sched_setscheduler(pid, os.SCHED_IDLE if idle else os.SCHED_OTHER, os.sched_param(0))
    except OSError as error:
        logger.debug("cannot set the priority of the compile process: %s", error)


def _end_of(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    known = {signal.value: signal.name for signal in signal.Signals}
    hint = ", as where memory runs out," if code == -signal.SIGKILL else ""
    return f"died of {known.get(-code, f'signal {-code}')}{hint}"
