# SPDX-License-Identifier: Apache-2.0
"""A job as a call: all ranks get one argument, and each one gives a result (`horovod/function_job.py`). Both are bytes.

The launcher sends the argument to each agent, in pieces. The agent passes it to its ranks in anonymous memory, and each
rank writes its result into memory of its own. After the rank has ended, the agent sends the result to the launcher. No
file, command line or variable contains any of them.

Threading: each object belongs to one thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import frames
from agspeed.launch.launcher_link import LauncherLink

__all__ = ["Call", "Memory", "OfRank", "receive"]

_VARIABLE = "AGSPEED_EXCHANGE"
_MOST_BYTES = 1 << 32


@dataclass
class Call:
    """The launcher's side.

    Attributes:
        argument: for all ranks.
        results: of the ranks that have ended; empty if one has given none. The keys are ranks of a job of fixed size,
            and members of an elastic job.
    """

    argument: bytes
    results: dict[int, bytes] = field(default_factory=dict)
    _begun: dict[int, bytearray] = field(default_factory=dict)

    def pieces(self) -> list[bytes]:
        """Returns the argument in pieces that fit into frames; at least one."""
        return _pieces(self.argument, frames.MOST_LAUNCHER_BYTES)

    def add(self, rank: int, is_last: bool, piece: bytes) -> None:
        """Takes a piece of a result from an agent. Raises: FrameError if it is too long."""
        whole = self._begun.setdefault(rank, bytearray())
        whole += piece
        if len(whole) > _MOST_BYTES:
            raise frames.FrameError(f"a result of more than {_MOST_BYTES} bytes")
        if is_last:
            self.results[rank] = bytes(self._begun.pop(rank))


class Memory:
    """An agent's side: the argument, and the results of ranks that run at the same time. A context manager.

    Attributes:
        descriptors: for ranks to inherit under the same numbers.
    """

    def __init__(self, argument: int | None, ranks: Sequence[int]) -> None:
        """argument: its descriptor, which `Memory` does not close; None for a job that is no call."""
        self._argument = argument
        self._results: dict[int, int] = {}
        if argument is not None:
            self._results = {rank: os.memfd_create("agspeed-result", os.MFD_CLOEXEC) for rank in ranks}
        self.descriptors = () if argument is None else (argument, *self._results.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in self._results.values():
            os.close(descriptor)
        self._results = {}

    def variables(self, rank: int) -> Mapping[str, str]:
        """Returns the variables by which a rank finds its memory."""
        return {_VARIABLE: f"{self._argument},{self._results[rank]}"} if rank in self._results else {}

    def send(self, link: LauncherLink) -> None:
        """Sends the results. Call it after the ranks have ended."""
        for rank, descriptor in self._results.items():
            *pieces, last = _pieces(_read(descriptor), frames.MOST_AGENT_BYTES)
            for piece in pieces:
                link.send("result", [rank, False], piece)
            link.send("result", [rank, True], last)


@contextlib.contextmanager
def receive(link: LauncherLink, num_pieces: int) -> Iterator[int | None]:
    """Yields a descriptor of the argument, which the launcher sends behind its "job"; None if it has no pieces."""
    if not num_pieces:
        yield None
        return
    descriptor = os.memfd_create("agspeed-argument", os.MFD_CLOEXEC)
    try:
        for _ in range(num_pieces):
            _write(descriptor, link.wait_for_frame("argument").data)
        yield descriptor
    finally:
        os.close(descriptor)


class OfRank:
    """A rank's side. Programs that the rank starts do not inherit it."""

    def __init__(self) -> None:
        """Raises: UserError in a process that is no rank of such a job."""
        text = os.environ.pop(_VARIABLE, "")
        try:
            self._argument, self._result = map(int, text.split(","))
            for descriptor in (self._argument, self._result):
                os.set_inheritable(descriptor, False)
        except (OSError, ValueError):
            raise UserError(
                f"{_VARIABLE}={text}: this process is no rank of a call; only the launcher starts such a process."
            ) from None

    def argument(self) -> bytes:
        return _read(self._argument)

    def give(self, result: bytes) -> None:
        """Sets the result. Raises: UserError if it is too long."""
        if len(result) > _MOST_BYTES:
            raise UserError(
                f"the result has {len(result)} bytes, and {_MOST_BYTES} is the most; write it to a file, and return "
                "the file's name."
            )
        try:
            _write(self._result, result)
        except OSError as error:
            raise AgspeedError(
                f"the result of {len(result)} bytes does not fit into memory: {error.strerror}; write it to a file, "
                "and return the file's name."
            ) from None


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[begin : begin + size] for begin in range(0, max(1, len(data)), size)]


def _read(descriptor: int) -> bytes:
    """Returns the whole content. It does not move the descriptor's place, which other processes share."""
    size = os.fstat(descriptor).st_size
    found = bytearray()
    while len(found) < size:
        found += os.pread(descriptor, size - len(found), len(found))
    return bytes(found)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
