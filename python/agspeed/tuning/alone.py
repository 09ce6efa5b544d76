# SPDX-License-Identifier: Apache-2.0
"""Ranks that tune alone: they neither measure together nor agree on a plan, which users should know."""

from __future__ import annotations

from agspeed.config import Settings
from agspeed.distributed.groups import world_size
from agspeed.log import warn_once


def alone(settings: Settings) -> str:
    """What to add to a decision's reason, "" where no other rank tunes. Warns once."""
    size = world_size()
    if size == 1 or settings.mode == "deterministic":
        return ""
    warn_once(
        ("ranks",),
        f"each of the {size} ranks tunes on its own: they may choose different plans, and each measures steps in "
        'which it waits for the others; mode="deterministic" takes no timing',
    )
    return f"; each of the {size} ranks tunes on its own"
