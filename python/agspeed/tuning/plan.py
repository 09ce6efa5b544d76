# SPDX-License-Identifier: Apache-2.0
"""Parses plan names, and proposes plans to try after the first decision.

A plan's name describes it completely: "inductor" runs every region with inductor, and "inductor+r2:native" runs region
2 with native instead. Regions are numbered in the order of capture, which is the same in every process that trains the
same model. The part after a slash is the plan's bucket layout: "native/b1-4" (`layout_arms.py`).

The first decision is between plans of one candidate each. If a model has several regions, `refinements` then swaps the
candidate of one region at a time. The tuner measures these plans by the whole step, like all others, and the next round
starts from its choice. Pure functions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from agspeed.distributed.layouts import is_layout, layout_of, plan_of

EAGER = "eager"
GRAPH_EAGER = "graph-eager"
_CANDIDATE = r"(?:(?!\+r)[^:/\x00-\x1f\x7f]){1,100}"
_PLAN = re.compile(rf"{_CANDIDATE}(?:\+r\d{{1,6}}:{_CANDIDATE})*")
_MAX_PER_ROUND = 4
_MIN_SHARE = 0.05
"""Regions with a smaller share of the operators cannot change the step's time measurably."""
_MAX_RATIO = 1.1
"""If eager was decided on, refinements start from the best plan, unless its steps take more than this times eager's."""


def is_plan(name: object) -> bool:
    """Returns whether this is a valid plan name, with or without a bucket layout. Its candidates need not exist."""
    if not isinstance(name, str) or _PLAN.fullmatch(plan_of(name)) is None:
        return False
    return plan_of(name) == name or is_layout(layout_of(name))


@functools.cache
def _parsed(plan: str) -> tuple[str, Mapping[int, str]]:
    base, *swaps = plan_of(plan).split("+r")
    pairs = (swap.partition(":") for swap in swaps)
    return base, {int(index): name for index, _, name in pairs}


def candidate_of(plan: str, region: int) -> str:
    """Returns the candidate with which `plan` runs the region of that index."""
    base, swaps = _parsed(plan)
    return swaps.get(region, base)


def candidates_of(plan: str) -> set[str]:
    """Returns all candidates that `plan` uses."""
    base, swaps = _parsed(plan)
    return {base, *swaps.values()}


def with_swap(plan: str, region: int, name: str) -> str:
    """Returns `plan` with another candidate for one region. Equal plans always get the same name."""
    base, swaps = _parsed(plan)
    merged = sorted({**swaps, region: name}.items())
    return base + "".join(f"+r{index}:{other}" for index, other in merged if other != base)


def refinements(decided: str, arms: Iterable[Mapping[str, Any]], regions: list[Any]) -> list[str]:
    """Returns plans to measure after the tuner has decided on `decided`; [] if there is nothing left to try.

    Args:
        arms: the tuner's arms, as in its snapshot.
        regions: regions with `index`, `num_operators` and the `outcomes` of candidates.
    """
    measured = {
        arm["name"]: arm["ratio"]["estimate"]
        for arm in arms
        if arm["state"] == "ready" and arm["ratio"] and not layout_of(arm["name"])
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


def _alternatives(region: Any, current: str, ranked: list[str]) -> list[str]:
    """Returns other candidates that can run the region, in the order of their own plans, with graph-eager last."""
    usable = [name for name, outcome in region.outcomes.items() if outcome.usable]
    running = current if current in usable else GRAPH_EAGER
    names = [name for name in ranked if name in usable and name != GRAPH_EAGER]
    return [name for name in [*names, GRAPH_EAGER] if name != running]


def _in_turns(lists: list[list[str]]) -> list[str]:
    """Returns the first entry of each list, then the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return list(dict.fromkeys(entries[turn] for turn in range(longest) for entries in lists if turn < len(entries)))
