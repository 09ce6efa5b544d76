# SPDX-License-Identifier: Apache-2.0
"""Resync: ranks that have decided, and no longer sync, find one backward in which all of them sync again.

A rank that does not doubt the decision pays nothing: it polls no store and has no hook. Ranks train in step, so a cause
that slows one rank slows all of them, and each rank notices that by its own clock. A resync then goes as follows:

1. A rank that doubts the decision writes so to the store, and counts its backwards from then on.
2. Rank 0 finds that all ranks doubt it. For each of its last backwards, rank 0 writes how many collectives the group
   had begun before it, counted from the latest sync.
3. Each rank finds the same counts among its own backwards, and so knows which of them rank 0 means. All ranks sync
   `_NOTICE` backwards after rank 0 wrote.

A rank objects if its own counts do not match, or if the resync takes too many backwards. It writes the objection before
its gradients leave, so all ranks can read it in the next backward, which is in time. Only a rank whose store has failed
cannot object; the others then wait for it for a while.

The caller calls `of_backward` at the beginning of each backward that reduces gradients, in the same ones at all ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

from agspeed.distributed.messages import count, yes
from agspeed.distributed.room import Room

_LOOKED_AT = 16
"""A rank polls the store once in this number of its backwards."""
_NOTICE = _LOOKED_AT + 4
"""Backwards from rank 0's message to the sync. The last rank that finds the message can still object."""
_FIRST_LIMIT, _MOST_LIMIT = 1024, 16384
"""Backwards after which a rank objects: at the first try, and at most. Ranks watch only some of their steps, and not
the same ones, so they begin to seek at different times. The limit doubles with each fruitless try, because ranks that
begin far apart would otherwise miss each other again and again."""
_MOST_FRUITLESS = 8
_MOST_MISSED = 64
"""Most resyncs that may have ended while a rank did not doubt the decision. It skips them when it begins to seek."""
_MOST_COLLECTIVES = 1 << 62


class Resync:
    """One rank's part in the resyncs of its group. Each resync has a number. A new one may follow a failed one."""

    def __init__(self, room: Room, rank: int, num_ranks: int, num_collectives: Callable[[], int]) -> None:
        """num_collectives: returns how many collectives the group has begun (see `Backwards.num_collectives`)."""
        self.is_sought = False
        """Whether this rank seeks a resync with the others."""
        self.is_given_up = False
        """Whether this rank has given up for good: another try is not worth it, or not safe."""
        self._room, self._rank, self._num_ranks = room, rank, num_ranks
        self._num_collectives = num_collectives
        self._number = self._num_fruitless = 0
        self._num_backwards, self._syncs_at, self._counted_from = 0, -1, 0
        self._begun: deque[int] = deque(maxlen=2 * _NOTICE)

    def count_from_here(self) -> None:
        """Makes the counts of collectives begin here. All ranks call this in the same backward."""
        try:
            self._counted_from = self._num_collectives()
        except RuntimeError:  # a backend that does not count them
            self.give_up()

    def seek(self) -> None:
        """Makes this rank seek a resync, from the next backward on."""
        self._num_backwards, self._syncs_at = 0, -1
        self._begun.clear()
        self.is_sought = True

    def of_backward(self) -> Literal["wait", "sync", "over"]:
        """Returns what the rank does in the backward that begins. Requires: `is_sought`."""
        self._num_backwards += 1
        self._begun.append(self._num_collectives() - self._counted_from)
        if self._num_backwards == 1:
            self._write_doubt()
        elif self._num_backwards == self._syncs_at:
            is_off = self._is_over()
            self._number += 1
            return self._ended(fruitless=is_off)
        elif self._syncs_at < 0 and self._num_backwards % _LOOKED_AT == 0:
            self._look()
        return "wait" if self.is_sought else "over"

    def give_up(self) -> None:
        self.is_sought, self.is_given_up = False, True

    def _write_doubt(self) -> None:
        for _ in range(_MOST_MISSED):
            if not self._is_over():
                self._room.put(self._key(f"sought/{self._rank}"), True)
                return
            self._number += 1
        self.give_up()

    def _look(self) -> None:
        if self._is_over():
            self._ended(fruitless=True)
        elif self._rank == 0 and self._are_all_there():
            self._room.put(self._key("begun"), list(self._begun))
            self._syncs_at = self._num_backwards + _NOTICE
        elif begun := self._room.find(self._key("begun"), _begun):
            self._accept(begun)
        elif self._num_backwards >= min(_FIRST_LIMIT << self._num_fruitless, _MOST_LIMIT):
            self._object()

    def _accept(self, theirs: list[int]) -> None:
        """Finds the backward of the sync, or objects. theirs: the counts of collectives that rank 0 has written."""
        ours = list(self._begun)
        is_clear = all(one < other for counts in (ours, theirs) for one, other in pairwise(counts))
        known = ours[: ours.index(theirs[-1]) + 1] if theirs[-1] in ours else []
        syncs_at = self._num_backwards - (len(ours) - len(known)) + _NOTICE
        are_alike = all(one == other for one, other in zip(reversed(known), reversed(theirs), strict=False))
        if is_clear and known and are_alike and syncs_at > self._num_backwards:
            self._syncs_at = syncs_at
        else:
            self._object()
            self.give_up()

    def _is_over(self) -> bool:
        return self._room.find(self._key("over"), yes) is not None

    def _are_all_there(self) -> bool:
        keys = [self._key(f"sought/{rank}") for rank in range(self._num_ranks)]
        return self._room.find_all(keys, yes) is not None

    def _object(self) -> None:
        self._room.put(self._key("over"), True)
        self._ended(fruitless=True)

    def _ended(self, *, fruitless: bool) -> Literal["sync", "over"]:
        self.is_sought = False
        self._num_fruitless = self._num_fruitless + 1 if fruitless else 0
        self.is_given_up = self.is_given_up or self._num_fruitless >= _MOST_FRUITLESS
        return "over" if fruitless else "sync"

    def _key(self, name: str) -> str:
        return f"resync/{self._number}/{name}"


def _begun(found: Any) -> list[int]:
    """Parses the counts of collectives that rank 0 has written. Raises: ValueError or TypeError."""
    if not 0 < len(found) <= 2 * _NOTICE:
        raise ValueError(f"{len(found)} backwards")
    return [count(each, _MOST_COLLECTIVES) for each in found]
