# SPDX-License-Identifier: Apache-2.0
"""Proposes plans to try after the first decision.

The first decision is between plans of one candidate each. If a model has several regions, `refinements` then swaps the
candidate of one region at a time. The tuner measures these plans by the whole step, like all others, and the next round
starts from its choice. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agspeed.distributed.layouts import layout_of
from agspeed.regions.plan import GRAPH_EAGER, candidate_of, candidates_of, with_swap
from agspeed.regions.state import State

if TYPE_CHECKING:
    from agspeed._native import TunerArmSnapshot
    from agspeed.regions.region import Region

_MAX_PER_ROUND = 4
_MIN_SHARE = 0.05
"""Regions with a smaller share of the operators cannot change the step's time measurably."""
_MAX_RATIO = 1.1
"""If eager was decided on, refinements start from the best plan, unless its steps take more than this times eager's."""


def refinements(decided: str, arms: Iterable[TunerArmSnapshot], regions: Sequence[Region]) -> list[str]:
    """Returns plans to measure after the tuner has decided on `decided`; [] if there is nothing left to try.

    Args:
        arms: the tuner's arms, as in its snapshot.
    """
    measured = {
        arm["name"]: arm["ratio"]["estimate"]
        for arm in arms
        if arm["state"] == State.READY and arm["ratio"] and not layout_of(arm["name"])
    }
    start = decided if decided in measured else min(measured, key=lambda name: measured[name], default=None)
    if len(regions) < 2 or start is None or measured[start] > _MAX_RATIO:
        return []
    ranked = sorted((name for name in measured if len(candidates_of(name)) == 1), key=lambda name: measured[name])
    known = {arm["name"] for arm in arms}
    by_region = []
    least = _MIN_SHARE * sum(region.num_operators for region in regions)
    large = [region for region in regions if region.num_operators >= least]
    for region in sorted(large, key=lambda region: -region.num_operators):
        others = _alternatives(region, candidate_of(start, region.index), ranked)
        by_region.append([plan for other in others if (plan := with_swap(start, region.index, other)) not in known])
    return _in_turns(by_region)[:_MAX_PER_ROUND]


def _alternatives(region: Region, current: str, ranked: list[str]) -> list[str]:
    """Returns other candidates that can run the region, in the order of their own plans, with graph-eager last."""
    usable = [name for name, outcome in region.outcomes.items() if outcome.usable]
    running = current if current in usable else GRAPH_EAGER
    names = [name for name in ranked if name in usable and name != GRAPH_EAGER]
    return [name for name in [*names, GRAPH_EAGER] if name != running]


def _in_turns(lists: list[list[str]]) -> list[str]:
    """Returns the first entry of each list, then the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return list(dict.fromkeys(entries[turn] for turn in range(longest) for entries in lists if turn < len(entries)))
