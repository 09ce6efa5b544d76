# SPDX-License-Identifier: Apache-2.0
"""Passes the output of ranks on to the launcher's own stdout and stderr, and into files if asked for.

Every line begins with its rank. A line ends at \\n, or at the \\r of a progress bar. An unfinished line is passed on if
nothing has followed for a moment, or if it is long. If another stream writes next, its output begins on a new line.

Bytes do not change. Memory is bounded: if the launcher's reader is slow, ranks wait, as they would for a reader of
their own. If the reader has gone, the output is dropped, and the job goes on.

Threading: one thread owns an `Output`.
"""

from __future__ import annotations

import collections
import datetime
import math
import os
import select
import stat
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self, TextIO

from agspeed import files
from agspeed.errors import UserError
from agspeed.launch.pipes import STREAMS

__all__ = ["Output"]

_HOLD_S = 0.1
_MOST_HELD_BYTES = 1 << 16
_MOST_PENDING_BYTES = 1 << 20
_LAST_LINES = 20
_LONGEST_LAST_LINE = 1000


class Output:
    """The output of all ranks; a context manager."""

    def __init__(self, num_ranks: int, folder: Path | None, has_time: bool, goes_on: bool = False) -> None:
        """
        Args:
            folder: where ranks' output is also written, as rank.N/stdout and stderr; None for no files.
            goes_on: whether files that exist get longer, instead of new ones.

        Raises: UserError if these files cannot be made.
        """
        self._targets, self._goes_on = _targets(), goes_on
        self._folder, self._num_digits, self._has_time = folder, len(str(num_ranks - 1)), has_time
        self._streams: dict[int, list[_Stream]] = {}
        for rank in range(num_ranks):
            self._open(rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._all():
            stream.close()

    @property
    def is_pending(self) -> bool:
        """Whether there is output that the launcher's reader has not taken."""
        return any(target.pending for target in self._targets)

    def is_full(self, stream: int) -> bool:
        """Whether the launcher's reader is slow, so that ranks should wait. stream: 0 for stdout, 1 for stderr."""
        return self._targets[stream].is_full

    def add(self, rank: int, stream: int, data: bytes) -> None:
        """Passes on what a rank has written. stream: as for `is_full`. Elastic jobs have ranks that begin later.

        Raises: UserError if the files of a new rank cannot be made.
        """
        if rank not in self._streams:
            self._open(rank)
        self._streams[rank][stream].add(data)

    def wait(self, others: Mapping[int, int], seconds: float = math.inf) -> Collection[int]:
        """Waits for `others` or for `seconds`, and writes output meanwhile.

        Args:
            others: descriptors, with their events for select.poll().

        Returns: the descriptors of `others` that are ready.
        """
        self._write_some()
        poller = select.poll()
        for descriptor, events in others.items():
            poller.register(descriptor, events)
        for target in self._targets:
            if target.pending:
                poller.register(target.descriptor, select.POLLOUT)
        left = min([seconds, *(stream.due - time.monotonic() for stream in self._all())])
        ready = {descriptor for descriptor, _ in poller.poll(None if left == math.inf else max(0.0, left) * 1000)}
        for stream in self._all():
            if stream.due <= time.monotonic():
                stream.pass_on_rest()
        self._write_some()
        return ready.intersection(others)

    def finish(self) -> None:
        """Called when the ranks have ended."""
        for stream in self._all():
            stream.end()
        self._write_some()

    def write_note(self, sentence: str) -> None:
        """Writes a line of the launcher to stderr."""
        self._targets[1].write_line(f"agspeed: {sentence}\n".encode("utf-8", "replace"), None)
        self._write_some()

    def write_report(self, rank: str, number: int, how: str) -> None:
        """Writes to stderr how a rank has ended, and its last lines. rank: its name for the user."""
        self.write_note(f"{rank} ended {how}, so the job was ended; its last lines:")
        for line in self._streams[number][0].last_lines if number in self._streams else ():
            self._targets[1].write_line(b"  " + line + b"\n", None)
        self._write_some()

    def _write_some(self) -> None:
        for target in self._targets:
            target.write_some()

    def _all(self) -> list[_Stream]:
        return [stream for pair in self._streams.values() for stream in pair]

    def _open(self, rank: int) -> None:
        copies: list[_Copy | None] = [None for _ in STREAMS]
        if self._folder is not None:
            own = _folder(self._folder / f"rank.{rank:0{self._num_digits}}")
            copies = [_Copy(own / name, self._targets[1], self._goes_on) for name in STREAMS]
        lines = collections.deque[bytes](maxlen=_LAST_LINES)
        self._streams[rank] = [
            _Stream(f"[{rank}]<{name}>:", self._has_time, target, copy, lines)
            for name, target, copy in zip(STREAMS, self._targets, copies, strict=True)
        ]


class _Stream:
    """The stdout or stderr of a rank. `due` is the time at which an unfinished line is passed on (time.monotonic())."""

    def __init__(
        self, prefix: str, has_time: bool, target: _Target, copy: _Copy | None, last_lines: collections.deque[bytes]
    ) -> None:
        self.target, self.last_lines = target, last_lines
        self.due = math.inf
        self._prefix, self._has_time, self._copy = prefix, has_time, copy
        self._held = b""
        self._last_line = b""

    def add(self, data: bytes) -> None:
        if self._copy is not None:
            self._copy.write(data)
        held = self._held + data
        end = max(held.rfind(b"\n"), held.rfind(b"\r", 0, -1)) + 1  # a \r at the end may be half of \r\n
        self._pass_on(held[:end].splitlines(keepends=True))
        if end or not self._held:
            self.due = time.monotonic() + _HOLD_S
        self._held = held[end:]
        if not self._held or len(self._held) > _MOST_HELD_BYTES:
            self.pass_on_rest()

    def pass_on_rest(self) -> None:
        """Passes on the unfinished line, as far as it has come."""
        self._pass_on([self._held] if self._held else [])
        self._held, self.due = b"", math.inf

    def end(self) -> None:
        """Called when the stream has ended."""
        self.pass_on_rest()
        if self._last_line:
            self.last_lines.append(self._last_line)
        self._last_line = b""

    def close(self) -> None:
        if self._copy is not None:
            self._copy.close()

    def _pass_on(self, lines: Sequence[bytes]) -> None:
        time_of_day = f"{datetime.datetime.now():%c}" if self._has_time else ""
        prefix = (time_of_day + self._prefix).encode()
        for line in lines:
            self.target.write_line(line, self, prefix)
            self._remember(line)

    def _remember(self, line: bytes) -> None:
        """Keeps a line for the report of the last lines, without text that a progress bar has overwritten."""
        self._last_line += line[: _LONGEST_LAST_LINE - len(self._last_line)]
        if line.endswith(b"\n"):
            self.last_lines.append(self._last_line.rstrip(b"\r\n"))
        if line.endswith((b"\n", b"\r")):
            self._last_line = b""


class _Copy:
    """A file with a copy of a stream. If a write fails, the file ends there, and one line on `errors` reports it."""

    def __init__(self, path: Path, errors: _Target, goes_on: bool) -> None:
        self._path, self._errors = path, errors
        try:
            self._file: TextIO | None = files.append(path) if goes_on else files.create(path)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}; name another folder.") from None

    def write(self, data: bytes) -> None:
        if self._file is None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file.fileno(), view) :]
        except OSError as error:
            text = f"agspeed: {self._path} cannot be written: {error.strerror}; it ends here\n"
            self._errors.write_line(os.fsencode(text), None)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class _Target:
    """The launcher's stdout or stderr. `pending` holds output that its reader has not taken.

    Python code such as a notebook may have replaced the stream by another one, which takes everything at once.
    """

    def __init__(self, stream: TextIO | None, original: TextIO | None) -> None:
        self._stream = stream
        self.pending = bytearray()
        self._unfinished: _Stream | None = None
        self.descriptor = -1
        self.file: tuple[int, int] | None = None
        self._poller = select.poll()
        if stream is not None and stream is original:
            stream.flush()
            self.descriptor = stream.fileno()
            info = os.fstat(self.descriptor)
            self.file = info.st_dev, info.st_ino
            self._is_regular = stat.S_ISREG(info.st_mode)
            self._poller.register(self.descriptor, select.POLLOUT)

    @property
    def is_full(self) -> bool:
        return len(self.pending) > _MOST_PENDING_BYTES

    def write_line(self, line: bytes, source: _Stream | None, prefix: bytes = b"") -> None:
        """Writes a line of `source`, or a part of one. The prefix goes before the first part of a line."""
        if self._unfinished is not source or source is None:
            if line == b"\r":
                return  # the line is empty
            self.pending += (b"\n" if self._unfinished is not None else b"") + prefix
        self.pending += line
        self._unfinished = None if line.endswith((b"\n", b"\r")) else source

    def write_some(self) -> None:
        """Writes as much as possible without waiting."""
        if self.descriptor < 0:
            self._hand_over()
        while self.pending and (self._is_regular or self._poller.poll(0)):
            try:
                count = os.write(self.descriptor, self.pending[: select.PIPE_BUF])  # a ready pipe takes PIPE_BUF bytes
            except BlockingIOError:
                return
            except OSError:
                count = len(self.pending)  # the reader has gone, or the disk is full
            del self.pending[:count]

    def _hand_over(self) -> None:
        text = self.pending.decode("utf-8", "replace")
        self.pending.clear()
        if self._stream is not None and text:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                self._stream = None


def _targets() -> tuple[_Target, _Target]:
    """The targets for stdout and stderr. Both are one object if they are the same file, as on a terminal."""
    out, err = _Target(sys.stdout, sys.__stdout__), _Target(sys.stderr, sys.__stderr__)
    return (out, out) if out.file is not None and out.file == err.file else (out, err)


def _folder(path: Path) -> Path:
    """Makes a folder for a rank's files. Raises: UserError if that fails, or if another user owns the folder."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        raise UserError(f"the folder {path} cannot be made: {error.strerror}; name another one.") from None
    if stat.S_ISLNK(info.st_mode) or info.st_uid != os.geteuid():
        what = "is a symbolic link" if stat.S_ISLNK(info.st_mode) else f"belongs to user {info.st_uid}, not to you"
        raise UserError(f"the folder {path} {what}: the ranks' output could get to a wrong place; name another one.")
    return path
