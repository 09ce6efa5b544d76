# SPDX-License-Identifier: Apache-2.0
"""Checks at regular intervals whether a DistributedDataParallel's parameters still have the same bits at all ranks.

Each comparison takes three reducing backwards (`backwards.py`):

1. Each rank writes digests of its parameters to the job's store, before its gradients leave.
2. Rank 0 finds the digests of all ranks, because the first of these backwards could not end without them. It writes
   which ranks differ.
3. All ranks read that.

No rank waits for another one, and the comparison adds no collective. With its digests, each rank writes its position:
the number of its backwards and of the group's collectives. If the positions differ (a rank was restored, or began
later), the comparisons end for good.
"""

from __future__ import annotations

import weakref
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from agspeed.config import Settings
from agspeed.distributed.backwards import Backwards
from agspeed.distributed.messages import count, text, yes
from agspeed.distributed.rank_group import RankGroup
from agspeed.distributed.room import room_of
from agspeed.errors import AgspeedError
from agspeed.log import logger
from agspeed.torch_compat import modules

_IN_STRICT = 1000
"""Backwards from one comparison to the next in strict mode. Comparisons then take less than a thousandth of the
steps' time: a step reads and writes parameters, gradients and the optimizer's state ten times or more, while a digest
reads the parameters once."""
_FEWEST = 4
"""Fewest backwards from one comparison to the next. All ranks know the result of one before the next one begins."""
_SHOWN = 8
_MOST_NUMBER, _MOST_LETTERS = 1 << 62, 2000
_checked: weakref.WeakSet[RankGroup] = weakref.WeakSet()
"""The groups whose replicas are compared."""


def compare_replicas(group: RankGroup, called: nn.Module, module: nn.Module, settings: Settings) -> None:
    """Compares the parameters that a group reduces from now on until `module` is restored, if the settings ask for it.

    All ranks must call this in the same training forward. called: see `Backwards`. module: the optimized module.
    """
    interval = settings.check_replicas or (_IN_STRICT if settings.strict else 0)
    if interval == 0 or group in _checked:
        return
    try:
        if (reason := group.why_layouts_stay()) is None:
            Replicas(group, called, module, max(interval, _FEWEST), is_strict=settings.strict)
    except Exception as error:  # private parts of torch may change
        reason = f"{type(error).__name__}: {error}"
    _checked.add(group)
    if reason is not None:
        logger.info("the replicas of %s are not compared: %s", type(module).__name__, reason)


class Replicas(Backwards):
    """The comparisons of one group's replicas (see the module's docstring). Hooks of the wrapper own this object."""

    def __init__(
        self,
        group: RankGroup,
        called: nn.Module,
        module: nn.Module,
        interval: int,
        *,
        is_strict: bool,
    ) -> None:
        super().__init__(group, called)
        self._module = weakref.ref(module)
        self._name = type(module).__name__
        self._rank, self._size = group.rank, group.size
        # Ranks may compare different sets of models, so the number of collectives tells the rooms apart.
        self._room, _ = room_of(group.process_group, f"replicas/{self._num_before}")
        self._interval, self._is_strict = interval, is_strict
        self._num_backwards = 0
        self._listen()

    def on_backward(self) -> None:
        """Does this backward's part of a comparison. Raises: AgspeedError at all ranks, if strict and they differ."""
        self._num_backwards += 1
        since = self._num_backwards % self._interval
        if since > 2 or self._num_backwards < self._interval:
            return
        found = None
        try:
            if since == 0:
                self._write_digests()
            elif since == 1 and self._rank == 0:
                self._compare()
            elif since == 2:
                found = self._heard()
        except Exception as error:  # the store is gone; the user's own collectives will report it
            self._end(f"{type(error).__name__}: {error}")
        if found is not None and self._is_strict:
            raise AgspeedError(f"{found} (raised because strict is set)")
        if found is not None and self._rank == 0:
            logger.warning("%s", found)

    def _write_digests(self) -> None:
        module = self._module()
        if module is None or modules.entry(module) is None:
            self._end("the model was restored")
            return
        digests = [digest(parameter) for _, parameter in self._parameters()]
        self._room.put(f"digests/{self._rank}", digests)
        self._room.put(f"place/{self._rank}", [*self._place(), zlib.crc32(repr(digests).encode())])

    def _compare(self) -> None:
        """Runs at rank 0: writes to the store if the ranks differ, or if they are not in the same step."""
        places = self._room.find_all([f"place/{rank}" for rank in range(self._size)], _numbers) or [[]]
        if not places[0] or any(place[:-1] != places[0][:-1] for place in places):
            self._room.put("over", True)
        elif any(place[-1] != places[0][-1] for place in places):
            self._room.put("differs", self._difference([place[-1] for place in places]))

    def _difference(self, totals: Sequence[int]) -> str:
        """Returns a sentence that names the ranks that differ. totals: by rank, one checksum of all its digests."""
        usual = totals.index(Counter(totals).most_common(1)[0][0])
        others = [rank for rank, total in enumerate(totals) if total != totals[usual]]
        expected, *rows = self._room.find_all([f"digests/{rank}" for rank in (usual, *others)], _numbers) or [[]]
        differing = [
            name
            for (name, _), of_usual, *of_others in zip(self._parameters(), expected, *rows, strict=True)
            if any(of_one != of_usual for of_one in of_others)
        ]
        return (
            f"the replicas of {self._name} have come apart: {_ranks(others)} other bits than rank {usual} in "
            f"{len(differing)} of {len(expected)} parameters, the first is {differing[0]} (backward "
            f"{self._num_backwards - 1}). Look for a step that was not reduced, or for something that one rank alone "
            "does; go on from a checkpoint, or broadcast the parameters"
        )

    def _heard(self) -> str | None:
        """Runs at all ranks: returns the difference that rank 0 has written, or None."""
        if (difference := self._room.find("differs", _sentence)) is not None:
            self._stop_listening()
            return difference
        if self._room.find("over", yes):
            self._end("they are not in the same step, or one of them compares nothing")
        return None

    def _end(self, reason: str) -> None:
        logger.info("the replicas of %s are compared no longer: %s", self._name, reason)
        self._stop_listening()

    def _place(self) -> list[int]:
        """This rank's position; it is equal at ranks in the same step."""
        try:
            return [self._num_backwards, self._group.num_collectives()]
        except RuntimeError:  # a backend that does not count them
            return [self._num_backwards]

    def _parameters(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters that the wrapper reduces, with their names."""
        called, reduced = self._called(), set(map(id, self._group.reduced_parameters()))
        assert called is not None  # the module is being called, so it exists
        return [(name, parameter) for name, parameter in called.named_parameters() if id(parameter) in reduced]


def digest(tensor: torch.Tensor) -> int:
    """The CRC-32 of a dense CPU tensor's bits, in the order of its elements."""
    with torch.no_grad():
        return zlib.crc32(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())


def _numbers(found: Any) -> list[int]:
    """Raises: ValueError or TypeError for anything that no rank writes."""
    return [count(each, _MOST_NUMBER) for each in list(found)]


def _sentence(found: Any) -> str:
    """Raises: ValueError for anything that rank 0 does not write."""
    return text(found, _MOST_LETTERS)


def _ranks(ranks: Sequence[int]) -> str:
    """The subject and the verb of a sentence about these ranks, e.g. "ranks 1, 2 have"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    return f"ranks {shown}{f' and {len(ranks) - _SHOWN} more' if len(ranks) > _SHOWN else ''} have"
