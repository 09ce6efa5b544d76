# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of light members (`light_member.py`) for tests."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from tests.python.launch.jobs import TIMEOUT_S, Job, wait_until

__all__ = ["MEMBER", "SLOW_S", "Training", "script"]

MEMBER = Path(__file__).with_name("light_member.py")
SLOW_S = 2 * TIMEOUT_S


class Training:
    """A job of light members on the hosts that `find` prints."""

    def __init__(self, folder: Path) -> None:
        self.job, self.notes = Job(folder), folder / "members"
        self.notes.mkdir()
        self.script = script(folder, f"cat {folder}/hosts")

    def print_hosts(self, *lines: str) -> None:
        draft = self.job.folder / "draft"
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.rename(self.job.folder / "hosts")

    def start(self, num_ranks: int, *options: str | Path) -> None:
        words = [sys.executable, str(MEMBER), str(self.notes)]
        self.job.start(num_ranks, "", *options, command=words)

    def start_found(self, num_ranks: int, *options: str | Path) -> None:
        self.start(num_ranks, "--host-discovery-script", self.script, *options)

    def hosts(self) -> list[str]:
        """The hosts of the members that train in the newest epoch, by rank."""
        last = {path: self._lines(path)[-1] for path in self.notes.glob("*.*") if self._lines(path)}
        newest = max((int(words[1]) for words in last.values() if words[0] == "epoch"), default=0)
        members = {int(words[2]): path for path, words in last.items() if words[:2] == ["epoch", str(newest)]}
        sizes = {int(last[path][3]) for path in members.values()}
        return [members[rank].stem for rank in sorted(members)] if sizes == {len(members)} else []

    def wait_for(self, *hosts: str) -> None:
        def is_so() -> bool:
            assert self.job.launcher is not None and self.job.launcher.poll() is None, self.job.errors()
            return self.hosts() == list(hosts)

        wait_until(is_so, f"members on {hosts}", SLOW_S)

    def wait_for_line(self, words: str) -> None:
        wait_until(lambda: words in self.job.errors(), words, SLOW_S)

    def pids(self, host: str) -> list[int]:
        return [int(path.suffix[1:]) for path in self.notes.glob(f"{host}.*")]

    def step(self, pid: int) -> int:
        """The newest step of a member."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.notes / "steps" / str(pid)).read_text())
        return 0

    def stop(self) -> int:
        (self.notes / "stop").touch()
        return self.finish()

    def finish(self) -> int:
        assert self.job.launcher is not None
        status = self.job.launcher.wait(SLOW_S)
        self.job.waits_for_nothing_left()
        return status

    def ends(self, host: str) -> list[str]:
        return [self._lines(path)[-1][0] for path in self.notes.glob(f"{host}.*")]

    def _lines(self, path: Path) -> list[list[str]]:
        return [line.split() for line in path.read_text().splitlines()]


def script(folder: Path, text: str) -> Path:
    path = folder / "find"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
