# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job as processes of this host.

Each rank is the leader of a session of its own, so that ending it ends what it started, too. Its output passes through
the launcher line by line, with its rank in front, and into files where asked for. The first rank that fails ends the
others: SIGTERM, and SIGKILL for what is still there some seconds later.

Threading: one thread per rank's stream reads; the caller's waits.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agspeed.errors import UserError
from agspeed.launch import job_key

__all__ = ["Request", "run"]

_GRACE_S = 5.0
_POLL_S = 0.05
_LAST_LINES = 20
_INTERRUPTED = 130
_HAS_OWN_KEY = ("AGSPEED_JOB_KEY", "AGSPEED_JOB_KEY_FILE")


@dataclass(frozen=True)
class Request:
    """What to start."""

    num_ranks: int
    command: Sequence[str]
    variables: Mapping[str, str]
    """Beside those that every rank has from this process, and those that say which rank it is."""
    output_folder: Path | None = None
    """Where rank.N/stdout and stderr are written as well."""
    has_prefix: bool = True
    has_time: bool = False


class _Rank:
    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number, self.process = number, process
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self.threads: list[threading.Thread] = []


def run(request: Request) -> int:
    """Starts the ranks and waits for them. Returns: 0, or the status of the first that failed (128 + N by signal N).

    Raises: UserError for a command that cannot be started.
    """
    ranks: list[_Rank] = []
    lock = threading.Lock()
    with _job_key() as (key_variables, descriptors), contextlib.ExitStack() as files:
        port = _free_port()
        try:
            with _interruptible():
                for number in range(request.num_ranks):
                    environment = os.environ | _variables(number, request, port) | key_variables
                    ranks.append(_start(number, request, environment, descriptors))
                    _read_output(ranks[-1], request, files, lock)
                failed = _wait(ranks)
        except KeyboardInterrupt:
            _end(ranks)
            return _INTERRUPTED
        finally:
            _end(ranks)
            for rank in ranks:
                for thread in rank.threads:
                    thread.join(_GRACE_S)
    if failed is None:
        return 0
    return _report(failed)


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
        # What torch.distributed reads.
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
    """Variables that say where the key is, and descriptors that ranks inherit; none where the user has given a key."""
    if any(os.environ.get(name) for name in _HAS_OWN_KEY):
        yield {}, ()
        return
    descriptor = job_key.create()
    try:
        yield {"AGSPEED_JOB_KEY_FILE": f"/proc/self/fd/{descriptor}"}, (descriptor,)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the ranks as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_port() -> int:
    """Free now; rank 0 takes it soon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(number: int, request: Request, environment: Mapping[str, str], descriptors: Sequence[int]) -> _Rank:
    try:
        process = subprocess.Popen(
            request.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"cannot start {request.command[0]}: {error.strerror}; check its name and path.") from None
    return _Rank(number, process)


def _read_output(rank: _Rank, request: Request, files: contextlib.ExitStack, lock: threading.Lock) -> None:
    width = len(str(request.num_ranks - 1))
    for name, source, target in (
        ("stdout", rank.process.stdout, sys.stdout),
        ("stderr", rank.process.stderr, sys.stderr),
    ):
        copy: IO[str] | None = None
        if request.output_folder is not None:
            folder = request.output_folder / f"rank.{rank.number:0{width}}"
            folder.mkdir(parents=True, exist_ok=True)
            copy = files.enter_context((folder / name).open("w", encoding="utf-8"))
        prefix = f"[{rank.number}]<{name}>:" if request.has_prefix else ""
        thread = threading.Thread(
            target=_pass_on, args=(rank, source, target, copy, prefix, request.has_time, lock), daemon=True
        )
        thread.start()
        rank.threads.append(thread)


def _pass_on(
    rank: _Rank,
    source: IO[bytes],
    target: IO[str],
    copy: IO[str] | None,
    prefix: str,
    has_time: bool,
    lock: threading.Lock,
) -> None:
    for raw in source:
        line = raw.decode("utf-8", "replace")
        rank.last_lines.append(line.rstrip("\n"))
        now = f"{datetime.datetime.now():%c}" if has_time else ""
        with lock, contextlib.suppress(OSError, ValueError):
            if copy is not None:
                copy.write(line)
                copy.flush()
            target.write(f"{now}{prefix}{line}")
            target.flush()


def _wait(ranks: Sequence[_Rank]) -> _Rank | None:
    """The first rank that fails, or None once all have succeeded."""
    while True:
        statuses = [rank.process.poll() for rank in ranks]
        for rank, status in zip(ranks, statuses, strict=True):
            if status not in (None, 0):
                return rank
        if all(status == 0 for status in statuses):
            return None
        time.sleep(_POLL_S)


def _end(ranks: Sequence[_Rank]) -> None:
    """Ends what still runs, and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [rank for rank in ranks if rank.process.poll() is None]
        for rank in alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, number)
        deadline = time.monotonic() + _GRACE_S
        for rank in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, deadline - time.monotonic()))


def _report(rank: _Rank) -> int:
    status = rank.process.returncode
    how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    print(f"agspeed: rank {rank.number} ended {how}, so the job was ended; its last lines:", file=sys.stderr)
    for line in rank.last_lines:
        print(f"  {line}", file=sys.stderr)
    return 128 - status if status < 0 else int(status)
