# SPDX-License-Identifier: Apache-2.0
"""Reunions: how ranks that have decided, and meet no more, find one backward in which they all meet again.

Until then nothing of this costs anything: a rank that is content asks no store and has no hook. As ranks train in step,
what slows one down slows all, and each sees it by its own clock. A rank that does says so in the store, and counts
backwards from then on. Once rank 0 finds that all do, it writes with how many collectives of the group, counted from
the latest meeting, its last backwards have begun, and `_NOTICE` backwards later all meet: each rank knows which of its
own backwards those are. One in which there are no such says so before its gradients leave; so does one whose patience
is at its end. Whatever was said before the gradients of one backward is known to everybody in the next: all ranks hear
of an objection in time, and only one whose store has failed is waited for, for a while.

Called at the beginning of each backward that reduces gradients, at the same ones at all ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

from agspeed.distributed.messages import count, yes
from agspeed.distributed.room import Room

_LOOKED_AT = 16
"""Of a rank's backwards every such one asks the store."""
_NOTICE = _LOOKED_AT + 4
"""Backwards until a meeting: the last rank to hear of it can still object."""
_PATIENCE, _MOST_PATIENCE = 1024, 16384
"""Backwards: ranks look at some of their steps only, and not at the same ones. Longer at each try, as ranks that begin
far apart would miss each other again and again.
"""
_MOST_FRUITLESS = 8
_MOST_MISSED = 64
"""Reunions that ended while a rank was content, of which it hears when it seeks the others."""
_MOST_COLLECTIVES = 1 << 62


class Reunion:
    """Of one rank. A reunion that has not come about is followed by another one, of a new number."""

    def __init__(self, room: Room, rank: int, num_ranks: int, num_collectives: Callable[[], int]) -> None:
        """num_collectives: how many the group has begun, which all ranks count alike but for messages of few."""
        self.is_sought = False
        """This rank looks for the others."""
        self.is_given_up = False
        """For good: another try is not worth it, or not safe."""
        self._room, self._rank, self._num_ranks = room, rank, num_ranks
        self._num_collectives = num_collectives
        self._number = self._num_fruitless = 0
        self._num_backwards, self._meets_at, self._counted_from = 0, -1, 0
        self._begun: deque[int] = deque(maxlen=2 * _NOTICE)

    def count_from_here(self) -> None:
        """All ranks are in the same backward."""
        try:
            self._counted_from = self._num_collectives()
        except RuntimeError:  # a backend that does not count them
            self.give_up()

    def seek(self) -> None:
        """This rank wishes to meet, from the next backward on."""
        self._num_backwards, self._meets_at = 0, -1
        self._begun.clear()
        self.is_sought = True

    def of_backward(self) -> Literal["wait", "meet", "over"]:
        """What to do in the backward that begins. Requires: is_sought."""
        self._num_backwards += 1
        self._begun.append(self._num_collectives() - self._counted_from)
        if self._num_backwards == 1:
            self._say()
        elif self._num_backwards == self._meets_at:
            is_off = self._is_over()
            self._number += 1
            return self._ended(fruitless=is_off)
        elif self._meets_at < 0 and self._num_backwards % _LOOKED_AT == 0:
            self._look()
        return "wait" if self.is_sought else "over"

    def give_up(self) -> None:
        self.is_sought, self.is_given_up = False, True

    def _say(self) -> None:
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
            self._meets_at = self._num_backwards + _NOTICE
        elif begun := self._room.find(self._key("begun"), _begun):
            self._accept(begun)
        elif self._num_backwards >= min(_PATIENCE << self._num_fruitless, _MOST_PATIENCE):
            self._object()

    def _accept(self, theirs: list[int]) -> None:
        """The last backwards of rank 0 began with so many collectives."""
        ours = list(self._begun)
        is_clear = all(one < other for counts in (ours, theirs) for one, other in pairwise(counts))
        known = ours[: ours.index(theirs[-1]) + 1] if theirs[-1] in ours else []
        meets_at = self._num_backwards - (len(ours) - len(known)) + _NOTICE
        are_alike = all(one == other for one, other in zip(reversed(known), reversed(theirs), strict=False))
        if is_clear and known and are_alike and meets_at > self._num_backwards:
            self._meets_at = meets_at
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

    def _ended(self, *, fruitless: bool) -> Literal["meet", "over"]:
        self.is_sought = False
        self._num_fruitless = self._num_fruitless + 1 if fruitless else 0
        self.is_given_up = self.is_given_up or self._num_fruitless >= _MOST_FRUITLESS
        return "over" if fruitless else "meet"

    def _key(self, name: str) -> str:
        return f"reunion/{self._number}/{name}"


def _begun(found: Any) -> list[int]:
    """With how many collectives another rank's last backwards began. Raises: ValueError, TypeError."""
    if not 0 < len(found) <= 2 * _NOTICE:
        raise ValueError(f"{len(found)} backwards")
    return [count(each, _MOST_COLLECTIVES) for each in found]
