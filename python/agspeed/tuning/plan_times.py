# SPDX-License-Identifier: Apache-2.0
"""Computes step times of plans that agree with their ratios, even if the machine's speed varied between trials.

A plan's ratio comes from pairs of runs, each next to an eager run. The plan's step time is the ratio times eager's
median over the pairs of all plans. The median of the plan's own steps would come from another moment, in which the
machine may have been twice as slow. Pure functions of the tuner's snapshot and its arms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agspeed.regions.plan import EAGER

if TYPE_CHECKING:
    from agspeed._native import TunerArmSnapshot, TunerRatio, TunerSnapshot

_WARM_STEPS = 8
"""The least number of undisturbed steps for a reliable median without pairs."""


def ratio(arm: TunerArmSnapshot, tuner: TunerSnapshot) -> TunerRatio | None:
    """Returns the arm's ratio to eager: from the pairs of its trial, or from the re-checks of a plan that an earlier
    process chose. None without pairs."""
    decision = tuner["decision"]
    if arm["ratio"] is None and decision is not None and decision["arm"] == arm["name"] != EAGER:
        return tuner["guard"]["ratio"]
    return arm["ratio"]


def step_seconds(arm: TunerArmSnapshot, tuner: TunerSnapshot) -> float | None:
    """Returns the seconds of a step of the arm; None if it never ran and there are no pairs."""
    eager, found = tuner["eager_paired_seconds"], ratio(arm, tuner)
    if eager is not None and arm["name"] == EAGER:
        return eager
    if eager is not None and found is not None:
        return eager * found["estimate"]
    return arm["seconds"]["p50"] if arm["seconds"] else None


def is_cold(arm: TunerArmSnapshot, tuner: TunerSnapshot) -> bool:
    """Returns True if the arm's time comes from a few first steps alone, without a ratio."""
    seconds = arm["seconds"]
    if seconds is None or arm["name"] == EAGER or ratio(arm, tuner) is not None:
        return False
    return seconds["count"] < _WARM_STEPS
