# SPDX-License-Identifier: Apache-2.0
"""Process sets: subsets of the ranks with operations of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agspeed.horovod.torch import job

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "register", "remove_process_set", "unregister_all"]


class ProcessSet:
    """A subset of the job's ranks. It can be used once init() or add_process_set() has registered it.

    ranks_or_comm: global ranks, each once.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.ranks: list[int] | None = None if ranks_or_comm is None else sorted(int(rank) for rank in ranks_or_comm)
        self.process_set_id: int | None = None

    def size(self) -> int:
        """The number of ranks in the set. Raises: ValueError if the set is not registered."""
        return len(self._known_ranks())

    def rank(self) -> int:
        """This rank's place in the set; -1 if it is not in the set."""
        own = job.current().where.rank
        ranks = self._known_ranks()
        return ranks.index(own) if own in ranks else -1

    def included(self) -> bool:
        """Whether this rank is in the set."""
        return self.rank() >= 0

    def group(self) -> Any:
        """The C++ group of the set. Raises: ValueError if the set is not registered or this rank is not in it."""
        current = job.current()
        if self.process_set_id == 0:
            return current.group
        ranks = self._known_ranks()
        part = current.parts.get(self.process_set_id or -1)
        if part is None:
            raise ValueError(
                f"rank {current.where.rank} cannot start an operation of process set {self.process_set_id}, which has "
                f"ranks {ranks}: only they may."
            )
        return part

    def place_of(self, global_rank: int) -> int:
        """The place of a global rank in the set. Raises: ValueError if it is not in the set."""
        ranks = self._known_ranks()
        if global_rank not in ranks:
            raise ValueError(f"rank {global_rank} is not one of the process set's, which are {ranks}.")
        return ranks.index(global_rank)

    def _known_ranks(self) -> list[int]:
        current = job.current()
        if self.process_set_id is None:
            raise ValueError(
                f"process set {self.ranks} is not registered, or has been removed: pass it to hvd.init() or "
                "hvd.add_process_set() first."
            )
        return list(range(current.where.size)) if self.ranks is None else self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet(None)
global_process_set.process_set_id = 0

_registered: dict[int, ProcessSet] = {}
_num_made = 0


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set. All ranks of the job call it, in the same order.

    Needs HOROVOD_DYNAMIC_PROCESS_SETS=1 or init(process_sets="dynamic"). Raises: ValueError for invalid ranks, and for
    a set that exists already.
    """
    current = job.current()
    if not current.options.are_process_sets_dynamic:
        raise ValueError(
            "process sets cannot be added after hvd.init() unless HOROVOD_DYNAMIC_PROCESS_SETS=1 is set or "
            'hvd.init(process_sets="dynamic") was called.'
        )
    return register(process_set)


def register(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Like add_process_set, but does not check the settings."""
    global _num_made
    current = job.current()
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if made.process_set_id is not None:
        raise ValueError(f"{made} is registered already: use it as it is.")
    ranks = list(range(current.where.size)) if made.ranks is None else made.ranks
    if not ranks or len(set(ranks)) < len(ranks) or not 0 <= ranks[0] <= ranks[-1] < current.where.size:
        raise ValueError(
            f"ranks {ranks} make no process set: name ranks from 0 to {current.where.size - 1}, each once."
        )
    if any(ranks == other.ranks for other in _registered.values()) or len(ranks) == current.where.size:
        raise ValueError(f"a process set with ranks {ranks} exists already: use that one.")
    _num_made += 1
    made.ranks, made.process_set_id = ranks, _num_made
    current.parts[_num_made] = current.group.create_part(ranks)
    _registered[_num_made] = made
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set. All ranks call it, in the same order.

    Returns: whether the set was registered; False for the global set.
    """
    current = job.current()
    number = process_set.process_set_id
    if not number or number not in _registered:
        return False
    part = current.parts.pop(number)
    if part is not None:
        part.shutdown()
    del _registered[number]
    process_set.process_set_id = None
    return True


def unregister_all() -> None:
    """Removes all sets at the end of a job, because the next job does not know them."""
    global _num_made
    for each in _registered.values():
        each.process_set_id = None
    _registered.clear()
    _num_made = 0
