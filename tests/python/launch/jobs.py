# SPDX-License-Identifier: Apache-2.0
"""Jobs of `agspeed run` for tests. Every process of a job has a mark in its environment, by which it is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.lint import sources

__all__ = ["TIMEOUT_S", "Job", "wait_until"]

TIMEOUT_S = 60
_MARK = "MARK_OF_TEST_JOB"


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until, f"{what}: not so after {TIMEOUT_S} s"
        time.sleep(0.02)


class Job:
    """A launcher, its ranks and all processes that these start. A context manager: leaving it kills the rest.

    Attributes:
        environment: for launchers that should belong to the job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGSPEED_", "HOROVOD_"))}
        self.environment = kept | {"PYTHONPATH": str(sources.ROOT / "python"), _MARK: str(folder)}
        self.launcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.launcher is not None:
            self.launcher.wait(TIMEOUT_S)

    def start(
        self,
        num_ranks: int,
        text: str,
        *options: str | Path,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        preexec: Callable[[], None] | None = None,
        **variables: str,
    ) -> subprocess.Popen[bytes]:
        """Starts ranks that run the Python `text`. Output goes to the folder's files out and err unless a stream is
        given."""
        command = [sys.executable, "-m", "agspeed", "run", "-np", str(num_ranks), *map(str, options)]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.launcher = subprocess.Popen(
                [*command, sys.executable, "-c", text],
                env=self.environment | variables,
                stdout=out if stdout is None else stdout,
                stderr=err if stderr is None else stderr,
                preexec_fn=preexec,
            )
        return self.launcher

    def left(self) -> list[int]:
        """Returns the processes of the job that have not ended."""
        return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if self._is_ours(pid)]

    def pids(self, name: str) -> list[int]:
        """Returns the process ids that programs wrote to files `name`.N of the folder, by N."""
        return [int(path.read_text()) for path in sorted(self.folder.glob(f"{name}.*"))]

    def errors(self) -> str:
        return (self.folder / "err").read_text()

    def lines(self, stream: IO[bytes], end: bytes) -> bytes:
        """Returns the bytes from a pipe, up to `end`."""
        return b"".join(self._bytes(stream, end))

    def _bytes(self, stream: IO[bytes], end: bytes) -> Iterator[bytes]:
        seen = b""
        while not seen.endswith(end):
            piece = os.read(stream.fileno(), 1)
            assert piece, f"the output ended before {end!r}: {seen!r}"
            seen += piece
            yield piece

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):
            return f"{_MARK}={self.folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False
