# SPDX-License-Identifier: Apache-2.0
"""The stall limit: how long a rank may be busy with something else before collectives of its group may time out."""

from __future__ import annotations

import math
from typing import Any

from agspeed.distributed.exchange import longest_wait
from agspeed.torch_compat.c10d import timeout_of


class StallLimit:
    """The stall limit for the ranks of a group, at most `most_s` seconds."""

    def __init__(self, group: Any, most_s: float = math.inf) -> None:
        self._group, self._most_s = group, most_s

    @property
    def longest_wait_s(self) -> float:
        """How long a rank may stand still between two steps."""
        return min(self._most_s, longest_wait(self._group).total_seconds())

    def why_too_slow(self, seconds: float) -> str | None:
        """Why a rank must not stand still for `seconds` again, or None if it may."""
        if seconds <= self.longest_wait_s:
            return None
        return (
            f"a part of compiling or checking it took {seconds:.1f} s: training may stand still for "
            f"{self.longest_wait_s:.1f} s where collectives run out of time after "
            f"{timeout_of(self._group).total_seconds():g} s"
        )
