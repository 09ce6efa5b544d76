# SPDX-License-Identifier: Apache-2.0
"""The pipes into which the ranks of this host write, read as fast as the launcher takes the bytes.

An agent owns them. If the launcher is slow, a window closes, the pipes of that stream fill, and ranks wait.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from agspeed.launch.frames import WINDOW_BYTES

__all__ = ["PIPE_BYTES", "STREAMS", "Backlog", "Piece", "Pipes"]

STREAMS = ("stdout", "stderr")
PIPE_BYTES = 1 << 20
"""The most that a pipe holds."""
_CHUNK_BYTES = 1 << 16


class Piece(NamedTuple):
    """Bytes of one stream of a rank. `rank` counts from 0 on this host."""

    rank: int
    stream: int
    data: bytes


class Backlog:
    """Output that waits for a launcher: the newest bytes of each stream, as many as its window lets through.

    Attributes:
        num_dropped: how many bytes of older output were dropped.
    """

    def __init__(self) -> None:
        self.num_dropped = 0
        self._pieces = [collections.deque[Piece]() for _ in STREAMS]
        self._sizes = [0 for _ in STREAMS]

    @property
    def sizes(self) -> list[int]:
        """The bytes that wait, by stream."""
        return list(self._sizes)

    def add(self, piece: Piece) -> None:
        pieces = self._pieces[piece.stream]
        pieces.append(piece)
        self._sizes[piece.stream] += len(piece.data)
        while self._sizes[piece.stream] > WINDOW_BYTES:
            size = len(pieces.popleft().data)
            self._sizes[piece.stream] -= size
            self.num_dropped += size

    def take(self) -> list[Piece]:
        """Returns what waits, and begins anew."""
        found = [piece for pieces in self._pieces for piece in pieces]
        self._pieces, self._sizes = [collections.deque() for _ in STREAMS], [0 for _ in STREAMS]
        self.num_dropped = 0
        return found


class Pipes:
    """Two pipes per rank; a context manager.

    `rank_ends` has, by rank, the descriptors that become the rank's stdout and stderr.
    """

    def __init__(self) -> None:
        self.rank_ends: dict[int, tuple[int, int]] = {}
        self._places: dict[int, tuple[int, int]] = {}  # rank and stream by the descriptor of our end
        self._windows = [WINDOW_BYTES for _ in STREAMS]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_rank_ends()
        for source in self._places:
            os.close(source)

    def open(self, rank: int) -> None:
        """Makes the pipes of a rank."""
        ends = []
        for stream in range(len(STREAMS)):
            source, end = os.pipe()
            os.set_blocking(source, False)
            self._places[source] = rank, stream
            ends.append(end)
        self.rank_ends[rank] = ends[0], ends[1]

    def close_rank_ends(self) -> None:
        """Closes this process's copies of `rank_ends`. Call it once the ranks have them."""
        for descriptor in (each for pair in self.rank_ends.values() for each in pair):
            os.close(descriptor)
        self.rank_ends = {}

    def sources(self) -> list[int]:
        """The descriptors that may be read now."""
        return [source for source, (_, stream) in self._places.items() if self._windows[stream] > 0]

    def take(self, source: int) -> Piece | None:
        """Reads once from one of `sources`. Returns: None if there is nothing to read."""
        rank, stream = self._places[source]
        if self._windows[stream] == 0:
            return None
        try:
            data = os.read(source, min(_CHUNK_BYTES, self._windows[stream]))
        except BlockingIOError:
            return None
        self._windows[stream] -= len(data)
        if not data:
            del self._places[source]
            os.close(source)
            return None
        return Piece(rank, stream, data)

    def open_windows(self, taken: Sequence[int]) -> None:
        """Called when the launcher has taken output. taken: the number of bytes, by stream."""
        self._windows = [min(WINDOW_BYTES, own + new) for own, new in zip(self._windows, taken, strict=True)]

    def reset_windows(self, used: Sequence[int]) -> None:
        """Called when another launcher begins. used: the bytes that it gets before it has taken any, by stream."""
        self._windows = [WINDOW_BYTES - each for each in used]

    def rest(self, rank: int) -> Iterator[Piece]:
        """Yields what the rank's pipes still hold after it has ended, whatever the windows, and closes them.

        Processes that the rank left may still write, so it yields at most what a pipe holds.
        """
        windows = self._windows
        for source in [source for source, (owner, _) in self._places.items() if owner == rank]:
            left = PIPE_BYTES
            while left > 0:
                self._windows = [_CHUNK_BYTES for _ in STREAMS]
                if (piece := self.take(source)) is None:
                    break
                left -= len(piece.data)
                yield piece
            if source in self._places:
                del self._places[source]
                os.close(source)
        self._windows = windows
