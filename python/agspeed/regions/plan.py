# SPDX-License-Identifier: Apache-2.0
"""Parses and makes plan names.

A plan's name describes it completely: "inductor" runs every region with inductor, and "inductor+r2:native" runs region
2 with native instead. Regions are numbered in the order of capture, which is the same in every process that trains the
same model. The part after a slash is the plan's bucket layout: "native/b1-4" (`tuning/layout_arms.py`). Or it says that
freed tensors keep their memory: "native/retained" (`tuning/memory/arms.py`). Pure functions, which need no torch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from agspeed.distributed.layouts import is_layout, layout_of, plan_of

EAGER = "eager"
GRAPH_EAGER = "graph-eager"
RETAINED_ARM = "retained"
_CANDIDATE = r"(?:(?!\+r)[^:/\x00-\x1f\x7f]){1,100}"
_PLAN = re.compile(rf"{_CANDIDATE}(?:\+r\d{{1,6}}:{_CANDIDATE})*")


def is_plan(name: object) -> bool:
    """Returns whether this is a valid plan name, with or without a part after a slash. Candidates need not exist."""
    if not isinstance(name, str) or _PLAN.fullmatch(plan_of(name)) is None:
        return False
    return plan_of(name) == name or is_layout(layout_of(name)) or layout_of(name) == RETAINED_ARM


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
