# SPDX-License-Identifier: Apache-2.0
"""Step times of plans that agree with their ratios, whatever the machine did between the trials of one and another.

A plan's ratio comes from pairs of runs, each beside one of eager. Its step time is shown at the pace that eager had in
the pairs of all plans: eager's median there, times the ratio. A median of its steps would be of another moment, in
which the machine may have been twice as slow. Pure functions of the tuner's snapshot and its arms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agspeed.tuning.plan import EAGER

_WARM_STEPS = 8
"""Undisturbed steps from which a median is believed that no pair stands behind."""

Json = Mapping[str, Any]


def ratio(arm: Json, tuner: Json) -> Json | None:
    """What pairs say about the arm: those of its trial, or the re-checks of a plan that an earlier process chose."""
    decision = tuner.get("decision")
    if arm["ratio"] is None and decision is not None and decision["arm"] == arm["name"] != EAGER:
        return tuner["guard"]["ratio"]  # type: ignore[no-any-return]
    return arm["ratio"]  # type: ignore[no-any-return]


def step_seconds(arm: Json, tuner: Json) -> float | None:
    """A step of the arm; None where it never ran, and no pair tells."""
    eager, found = tuner["eager_paired_seconds"], ratio(arm, tuner)
    if eager is not None and arm["name"] == EAGER:
        return float(eager)
    if eager is not None and found is not None:
        return float(eager * found["estimate"])
    return float(arm["seconds"]["p50"]) if arm["seconds"] else None


def is_cold(arm: Json, tuner: Json) -> bool:
    """True where the time shown is of a few first steps, which no ratio goes with."""
    is_timed = arm["seconds"] is not None and ratio(arm, tuner) is None
    return is_timed and arm["name"] != EAGER and arm["seconds"]["count"] < _WARM_STEPS
