# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a decision: this process, all ranks of a group together, or each rank of a job on its own."""

from __future__ import annotations

import sys

from torch import distributed

from agspeed.config import Settings
from agspeed.distributed.groups import world_size
from agspeed.distributed.meetings import Meetings
from agspeed.distributed.patience import Patience
from agspeed.log import warn_once

_HOROVODS = ("agspeed.horovod.torch", "horovod.torch")


def num_ranks() -> int:
    """Ranks that may hold the same parameters as this process, whatever reduces their gradients: those of the default
    group or of a Horovod job, whichever are more; 1 where this process trains alone. Costs a microsecond.
    """
    size = world_size()
    for horovod in filter(None, map(sys.modules.get, _HOROVODS)):
        if horovod.is_initialized():
            size = max(size, horovod.size())
    return size


def patience(settings: Settings, meetings: Meetings | None) -> Patience | None:
    """Of the ranks that may wait for this one; None where none does, or where what runs must not depend on time."""
    if meetings is not None:
        return meetings.patience
    is_waited_for = world_size() > 1 and settings.mode != "deterministic"
    return Patience(distributed.group.WORLD) if is_waited_for else None


def company(settings: Settings, meetings: Meetings | None) -> str:
    """What to add to a decision's reason, "" where no other rank tunes. Warns once where ranks tune on their own."""
    if meetings is not None:
        return f"; {meetings.num_ranks} ranks tune together"
    size = world_size()
    if size == 1 or settings.mode == "deterministic":
        return ""
    warn_once(
        ("ranks",),
        f"each of the {size} ranks tunes on its own: they may choose different plans, and each measures steps in "
        'which it waits for the others; mode="deterministic" takes no timing',
    )
    return f"; each of the {size} ranks tunes on its own"
