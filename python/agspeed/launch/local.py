# SPDX-License-Identifier: Apache-2.0
"""Runs a job's ranks as processes on this host: sets their environment and decides how the job ends.

The first rank that fails ends the job. SIGHUP, SIGINT, SIGQUIT or SIGTERM to the launcher ends it, too, unless the
launcher was started with that signal ignored. When the launcher ends for any reason, its ranks and all processes that
they have started end with it (`keeper.py`).

Threading: the caller's thread does everything. Signals are handled only if it is the main thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agspeed.launch import job_key
from agspeed.launch.output import Output
from agspeed.launch.ranks import Ranks, ending

__all__ = ["Request", "run"]

_INTERRUPTED = 130
_INTERRUPTED_FLUSH_S = 1.0
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_HAS_OWN_KEY = ("AGSPEED_JOB_KEY", "AGSPEED_JOB_KEY_FILE")


@dataclass(frozen=True)
class Request:
    """The job to start."""

    num_ranks: int
    command: Sequence[str]
    variables: Mapping[str, str]
    """Added to the variables of this process and to the variables that say which rank a process is."""
    output_folder: Path | None = None
    """The folder to which rank.N/stdout and stderr are written as well; None for no files."""
    has_time: bool = False


def run(request: Request) -> int:
    """Starts the ranks and waits for them.

    Returns: 0, the status of the first rank that failed (128 + N for signal N), or 130 after a signal to the launcher.
    Raises: UserError for a command that cannot be started, and for files that cannot be made.
    """
    with (
        _job_key() as (key_variables, descriptors),
        Output(request.num_ranks, request.output_folder, request.has_time) as output,
        _Signals() as signals,
    ):
        port = _free_port()
        variables = [_variables(number, request, port) | key_variables for number in range(request.num_ranks)]
        with Ranks(request.command, variables, output.rank_ends, descriptors) as ranks:
            output.close_rank_ends()
            is_interrupted = _follow(ranks, output, signals)
        output.read_rest()
        failed = None if is_interrupted else ranks.first_failed
        if failed is not None:
            output.write_report(failed[0], ending(failed[1]))
        _flush(output, signals)
    if failed is None:
        return _INTERRUPTED if is_interrupted else 0
    return 128 - failed[1] if failed[1] < 0 else failed[1]


def _follow(ranks: Ranks, output: Output, signals: _Signals) -> bool:
    """Passes output on until the job is over. Returns: whether a signal has ended it, not a rank."""
    is_interrupted = False
    while not ranks.is_over:
        ready = output.pass_on([ranks.fileno(), signals.fileno()])
        if ranks.fileno() in ready:
            ranks.note_events()
        if signals.fileno() in ready:
            signals.take()
        if signals.have_come and not is_interrupted and ranks.first_failed is None:
            is_interrupted = True
            ranks.end()
    return is_interrupted


def _flush(output: Output, signals: _Signals) -> None:
    """Waits until the reader has taken all output; after a signal only for a short time."""
    until = time.monotonic() + _INTERRUPTED_FLUSH_S if signals.have_come else math.inf
    while output.is_pending and time.monotonic() < until:
        if output.pass_on([signals.fileno()], until - time.monotonic()):
            signals.take()
            if signals.have_come:
                until = min(until, time.monotonic() + _INTERRUPTED_FLUSH_S)


class _Signals:
    """Notes the signals that end a job, while the context is open."""

    have_come = False

    def __enter__(self) -> Self:
        self._wake, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_listening = threading.current_thread() is threading.main_thread()
        if self._is_listening:
            self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            caught = [each for each in _SIGNALS if signal.getsignal(each) not in (None, signal.SIG_IGN)]
            self._before = {each: signal.signal(each, self._note) for each in caught}
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_listening:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._wake)
        os.close(self._write)

    def fileno(self) -> int:
        """A descriptor that is readable when a signal has come, even one that does not end the job."""
        return self._wake

    def take(self) -> None:
        """Clears `fileno` until the next signal comes."""
        os.read(self._wake, 1 << 16)

    def _note(self, *_: object) -> None:
        self.have_come = True


def _variables(number: int, request: Request, port: int) -> dict[str, str]:
    rank, size = str(number), str(request.num_ranks)
    return {
        **request.variables,
        "HOROVOD_HOSTNAME": socket.gethostname(),
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": rank,
        "HOROVOD_LOCAL_SIZE": size,
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        # Variables for torch.distributed.
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }


@contextlib.contextmanager
def _job_key() -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Yields variables that name the key's file, and descriptors for ranks to inherit; empty if the user set a key."""
    if any(os.environ.get(name) for name in _HAS_OWN_KEY):
        yield {}, ()
        return
    descriptor = job_key.create()
    try:
        yield {"AGSPEED_JOB_KEY_FILE": f"/proc/self/fd/{descriptor}"}, (descriptor,)
    finally:
        os.close(descriptor)


def _free_port() -> int:
    """Returns a port that is free at the moment; rank 0 will listen there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
