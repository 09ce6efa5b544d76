# SPDX-License-Identifier: Apache-2.0
"""What the compile child and its compilers print: one file, kept small, whose last line says why the child ended.

The child only ever appends to it, so the file may be cut while it runs. One thread of the training process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

_MAX_BYTES = 8 << 20
_KEPT_BYTES = 1 << 16
_MAX_LINE = 300


class ChildLog:
    """See the module's text. Every method may raise OSError where it says nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._job_begins = 0

    def open(self) -> BinaryIO:
        """For a child to write to; the folder is made where it is gone."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._path.open("ab")

    def begin_job(self) -> None:
        """What is printed from now on belongs to another job. Never raises."""
        self._job_begins = self._size()

    def last_line(self) -> str:
        """The last thing printed during this job, shortened; "" when nothing was. Never raises."""
        lines = self._tail(self._job_begins).decode(errors="replace").splitlines()
        printable = ("".join(c if c.isprintable() else " " for c in line).strip() for line in reversed(lines))
        line = next((text for text in printable if text), "")
        return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..."

    def cut(self) -> None:
        """Drops all but the end of a file that has grown large."""
        if self._size() <= _MAX_BYTES:
            return
        end = self._tail(0)
        os.truncate(self._path, 0)
        self._job_begins = 0
        with self.open() as file:
            file.write(end)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def _tail(self, begin: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(max(begin, self._size() - _KEPT_BYTES))
                return file.read(_KEPT_BYTES)
        except OSError:
            return b""
