# SPDX-License-Identifier: Apache-2.0
"""Standstill: a rank that has finished a capture or a load waits for the others in the job's store.

No collective is in flight meanwhile, so none can time out. A rank that is still busy writes a beat to the store once a
second, from a thread of its own. The others wait while beats arrive, at most two minutes. Then training goes on, and
its next reduction waits for the busy rank. Only such waits send requests to the store. Threads: the training thread,
except for the beats.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from agspeed.distributed.messages import count, yes
from agspeed.distributed.room import Room
from agspeed.log import logger

_BEAT_S = 1.0
_SILENCE_S = 5.0
"""The wait ends after this time without a beat: no rank is busy any more, or the busy rank cannot reach the store."""
LONGEST_S = 120.0
_MOST_BEATS = int(LONGEST_S / _BEAT_S)
_POLLS_S = (0.005, 0.1)
"""Pause between two polls: at first, and at most."""


class Standstill:
    """One rank's part in the standstills. All ranks call `begin` and `end` equally often."""

    def __init__(self, room: Room, rank: int, num_ranks: int) -> None:
        self._room, self._rank, self._num_ranks = room, rank, num_ranks
        self._number = 0
        self._through: threading.Event | None = None

    @property
    def is_begun(self) -> bool:
        return self._through is not None

    def begin(self) -> None:
        """Marks this rank as busy: it sends beats until `end`."""
        if self._through is not None or self._num_ranks == 0:
            return
        self._number += 1
        self._through = threading.Event()
        arguments = (self._room, f"beat/{self._number}", self._rank, self._through)
        threading.Thread(target=_beat, args=arguments, name="agspeed-standstill", daemon=True).start()

    def end(self) -> None:
        """Marks this rank as done, and waits for the others. Never raises. If the store fails, it never waits again."""
        through, self._through = self._through, None
        if through is None:
            return
        through.set()
        try:
            self._room.put(self._through_key(self._rank), True)
            self._wait()
        except Exception as error:
            logger.debug("ranks no longer wait for each other: %s", error)
            self._num_ranks = 0

    def _wait(self) -> None:
        begun = heard = time.monotonic()
        num_through, pause = 0, _POLLS_S[0]
        beats: dict[int, int] = {}
        while (now := time.monotonic()) < min(heard + _SILENCE_S, begun + LONGEST_S):
            while num_through < self._num_ranks and self._room.find_if_ours(self._through_key(num_through), yes):
                num_through += 1
            if num_through == self._num_ranks:
                return
            rank, number = self._room.find_if_ours(f"beat/{self._number}", self._beat_of) or (0, 0)
            if number > beats.get(rank, 0):  # an old message that was written again does not count as a beat
                beats[rank], heard = number, now
            time.sleep(pause)
            pause = min(2 * pause, _POLLS_S[1])
        logger.info("ranks train on before the last rank has finished its capture or load")

    def _through_key(self, rank: int) -> str:
        return f"through/{self._number}/{rank}"

    def _beat_of(self, found: Any) -> tuple[int, int]:
        """Parses a beat: the busy rank, and the number of its beat. Raises: ValueError or TypeError."""
        rank, number = found
        return count(rank, self._num_ranks - 1), count(number, _MOST_BEATS)


def _beat(room: Room, key: str, rank: int, through: threading.Event) -> None:
    try:
        for number in range(1, _MOST_BEATS + 1):
            if through.wait(_BEAT_S):
                return
            room.put(key, [rank, number])
    except Exception:  # without beats, the others wait for a shorter time
        logger.debug("no beats", exc_info=True)
