# SPDX-License-Identifier: Apache-2.0
"""Finds out which ranks take part in a decision: this process alone, all ranks of a group together, or each rank of a
job on its own."""

from __future__ import annotations

import sys

from torch import distributed

from agspeed.config import Settings
from agspeed.distributed.groups import world_size
from agspeed.distributed.rank_sync import RankSync
from agspeed.distributed.stall_limit import StallLimit
from agspeed.log import warn_once

_HOROVODS = ("agspeed.horovod.torch", "horovod.torch")


def num_ranks() -> int:
    """Returns how many ranks may hold the same parameters as this process: the size of the default group or of the
    Horovod job, whichever is larger. 1 if this process trains alone. Takes a microsecond.
    """
    size = world_size()
    for horovod in filter(None, map(sys.modules.get, _HOROVODS)):
        if horovod.is_initialized():
            size = max(size, horovod.size())
    return size


def stall_limit(settings: Settings, rank_sync: RankSync | None) -> StallLimit | None:
    """Returns how long other ranks can wait for this one. None if no rank waits for it, or if the choice of plans must
    not depend on time (mode="deterministic")."""
    if rank_sync is not None:
        return rank_sync.connection.stall_limit
    is_waited_for = world_size() > 1 and settings.mode != "deterministic"
    return StallLimit(distributed.group.WORLD) if is_waited_for else None


def company(settings: Settings, rank_sync: RankSync | None) -> str:
    """Returns text to append to a decision's reason; "" if no other rank tunes. Warns once if each rank tunes on its
    own."""
    if rank_sync is not None:
        return f"; {rank_sync.group.size} ranks tune together"
    size = world_size()
    if size == 1 or settings.mode == "deterministic":
        return ""
    warn_once(
        ("ranks",),
        f"each of the {size} ranks tunes on its own: they may choose different plans, and each measures steps in "
        'which it waits for the others; mode="deterministic" takes no timing',
    )
    return f"; each of the {size} ranks tunes on its own"
