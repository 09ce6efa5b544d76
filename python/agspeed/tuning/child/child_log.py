# SPDX-License-Identifier: Apache-2.0
"""Keeps the output of the compile child and its compilers in one small file. Its last line shows why the child ended.

The file has no name and disappears with the last process that has it open. The child only appends to it, so the
training process may truncate it while the child runs. Used by one thread of the training process.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

_MAX_BYTES = 8 << 20
_KEPT_BYTES = 1 << 16
_MAX_LINE = 300


class ChildLog:
    """The output file of one compile child."""

    def __init__(self, folder: Path) -> None:
        """folder: the file is made on this folder's disk. Raises: OSError."""
        self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115  closed by `close`
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)
        self._job_begins = 0

    def fileno(self) -> int:
        """Returns the descriptor to which a child writes."""
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def begin_job(self) -> None:
        """Marks the start of a job: `last_line` considers only later output."""
        self._job_begins = self.num_bytes()

    def last_line(self) -> str:
        """Returns the last line printed during this job, shortened; "" if the job printed nothing."""
        lines = self._tail(self._job_begins).decode(errors="replace").splitlines()
        printable = ("".join(c if c.isprintable() else " " for c in line).strip() for line in reversed(lines))
        line = next((text for text in printable if text), "")
        return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..."

    def cut(self) -> None:
        """Drops everything except the end of the file if it has grown large. Raises: OSError."""
        if self.num_bytes() <= _MAX_BYTES:
            return
        end = self._tail(0)
        os.ftruncate(self.fileno(), 0)
        self._job_begins = 0
        self._file.write(end)

    def num_bytes(self) -> int:
        return os.fstat(self.fileno()).st_size

    def _tail(self, begin: int) -> bytes:
        return os.pread(self.fileno(), _KEPT_BYTES, max(begin, self.num_bytes() - _KEPT_BYTES))
