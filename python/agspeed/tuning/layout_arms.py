# SPDX-License-Identifier: Apache-2.0
"""Proposes arms that differ in bucket layout: "native/b1-4" is the plan "native" with the layout "b1-4" (MiB).

A plan without a layout runs with the user's own layout. Layouts are tried last, with the plan that is about to be
decided on. The first are the two with the best prediction, which follows from the times at which the plan's gradients
are ready and the cost of a reduction. Next come neighbours of the best one, if their buckets differ from known ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agspeed.distributed.layouts import Layout, best_layouts, layout_of, neighbours, plan_of
from agspeed.distributed.rank_sync import RankSync
from agspeed.log import logger
from agspeed.regions.state import State

if TYPE_CHECKING:
    from agspeed._native import TunerArmSnapshot

_MAX_RATIO = 1.05


class LayoutArms:
    """The layout arms of one session. There are none unless ranks tune together; `RankSync` applies the layouts."""

    def __init__(self, rank_sync: RankSync | None, *, is_exact: bool) -> None:
        """is_exact: sums must keep their order."""
        self._rank_sync = rank_sync
        self._is_allowed = rank_sync is not None and (rank_sync.group.keeps_order or not is_exact)

    def named(self, plan: str) -> str:
        """Returns the arm's name for `plan` with the layout of the latest backward."""
        layout = self._rank_sync.layout if self._rank_sync is not None else ""
        return f"{plan}/{layout}" if layout else plan

    def beside(self, decided: str, arms: Iterable[TunerArmSnapshot]) -> list[str]:
        """Returns arms with other layouts that may be better than `decided`; [] if there is nothing left to try.

        Args:
            arms: the tuner's arms, as in its snapshot.
        """
        rank_sync = self._rank_sync
        if rank_sync is None or rank_sync.layouts is None or rank_sync.cost is None or not self._is_allowed:
            return []
        known, name, plan = {arm["name"] for arm in arms}, layout_of(decided), plan_of(decided)
        tried = [Layout.parse(layout_of(arm)) for arm in known if plan_of(arm) == plan and layout_of(arm)]
        ready = rank_sync.layouts.ready_times()
        if name:
            others = neighbours(Layout.parse(name), ready, [*tried, rank_sync.layouts.own])
            wanted = [f"{plan}/{layout.name}" for layout in others]
            wanted += [f"{other}/{name}" for other in _runners_up(plan, arms)]
        elif tried:
            return []  # layouts were measured with this plan, and lost
        else:
            layouts = best_layouts(ready, rank_sync.cost, rank_sync.layouts.own)
            logger.debug("gradients ready at %s, a reduction costs %s: layouts %s", ready, rank_sync.cost, layouts)
            wanted = [f"{plan}/{layout.name}" for layout in layouts]
        return [arm for arm in wanted if arm not in known]


def _runners_up(plan: str, arms: Iterable[TunerArmSnapshot]) -> list[str]:
    """Returns the best other plan that was at most slightly slower than eager, in a list. If steps waited for the
    network, this plan may be faster with a layout that removes the wait.
    """
    measured = {
        arm["name"]: arm["ratio"]["estimate"]
        for arm in arms
        if arm["state"] == State.READY and arm["ratio"] and plan_of(arm["name"]) == arm["name"] != plan
    }
    close = [name for name, ratio in measured.items() if ratio <= _MAX_RATIO]
    return sorted(close, key=lambda name: measured[name])[:1]
