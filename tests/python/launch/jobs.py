# SPDX-License-Identifier: Apache-2.0
"""Jobs of `agspeed run` for tests. Every process of a job has a mark in its environment, by which it is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.lint import sources

__all__ = ["RANK", "TIMEOUT_S", "WAITS", "Job", "wait_until"]

TIMEOUT_S = 60
_MARK = "MARK_OF_TEST_JOB"
# A rank with one child in its own session and one in a new session. `stubborn`: the rank ignores SIGTERM.
RANK = """
import os, pathlib, resource, signal, subprocess, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
folder, rank = pathlib.Path(os.environ["FOLDER"]), os.environ["RANK"]
if os.environ.get("KIND") == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for is_elsewhere in (False, True):
    subprocess.Popen(["sleep", "600"], start_new_session=is_elsewhere)
draft = folder / f"draft.{rank}"
draft.write_text(str(os.getpid()))
draft.rename(folder / f"rank.{rank}")
"""
WAITS = RANK + "time.sleep(600)"


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, f"{what}: not so after {timeout_s} s"
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
        self.environment["PATH"] = f"{_with_fake_ssh(folder)}:{kept['PATH']}"
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
        num_ranks: int | None,
        text: str,
        *options: str | Path,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        preexec: Callable[[], None] | None = None,
        command: Sequence[str] | None = None,
        words: Sequence[str] = (),
        cwd: Path | None = None,
        **variables: str,
    ) -> subprocess.Popen[bytes]:
        """Starts ranks that run the Python `text` with the arguments `words`, or another command.

        num_ranks: None for as many as the hosts have slots. Output goes to the folder's files out and err unless a
        stream is given.
        """
        count = [] if num_ranks is None else ["-np", str(num_ranks)]

        def prepare() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored under nohup
            if preexec is not None:
                preexec()

        launcher = [sys.executable, "-m", "agspeed", "run", *count, *map(str, options)]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.launcher = subprocess.Popen(
                [*launcher, *(command or [sys.executable, "-c", text, *words])],
                env=self.environment | variables,
                stdout=out if stdout is None else stdout,
                stderr=err if stderr is None else stderr,
                preexec_fn=prepare,
                cwd=cwd,
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

    def waits_for_nothing_left(self) -> None:
        wait_until(lambda: not self.left(), "no process is left")

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):
            return f"{_MARK}={self.folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False


def _with_fake_ssh(folder: Path) -> Path:
    """Returns a folder with a program `ssh` that runs fake_ssh.py."""
    programs = folder / "programs"
    programs.mkdir()
    program = programs / "ssh"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {Path(__file__).with_name("fake_ssh.py")} "$@"\n')
    program.chmod(0o755)
    return programs
