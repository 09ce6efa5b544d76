# SPDX-License-Identifier: Apache-2.0
"""Computes what tuning has cost and saved, and the step at which it breaks even. Pure functions of the tuner's
snapshot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from agspeed.regions.plan import EAGER
from agspeed.regions.state import REFUSED
from agspeed.tuning.forecast import forecast
from agspeed.tuning.plan_times import ratio, step_seconds

if TYPE_CHECKING:
    from agspeed._native import TunerSnapshot


class Balance(TypedDict):
    """The figures of the report's `cost` section."""

    foreground_s: float
    background_s: float
    budget_s: float | None
    saving_ms_per_step: float | None
    break_even_step: int | None
    saved_s: float
    left_s: float | None


def of(tuner: TunerSnapshot, plan: str, mode: str, num_operators: int) -> Balance:
    """Returns what tuning has cost and saved, and what it will.

    Args:
        plan: the plan in force.
        num_operators: the number of operators in all captured graphs together.
    """
    ledger = tuner["ledger"]
    is_tuning = tuner["phase"] != "settled"
    spent_s = max(0.0, ledger["slowdown_seconds"])
    left_s = _left_s(tuner, mode, num_operators) if is_tuning else 0.0
    saving_s = _best_saving(tuner) if is_tuning else _saving(tuner, plan)
    saved_s = _saved_s(tuner, saving_s)
    return {
        "foreground_s": spent_s,
        "background_s": ledger["background_seconds"],
        "budget_s": ledger["allowance_seconds"],
        "saving_ms_per_step": 1e3 * saving_s if saving_s else None,
        "break_even_step": _break_even(ledger["steps"], spent_s + (left_s or 0.0) - saved_s, saving_s),
        "saved_s": saved_s,
        "left_s": left_s,
    }


def _break_even(num_steps: int, missing_s: float, saving_s: float | None) -> int | None:
    """Returns the step by which another `missing_s` seconds are saved, counted from step `num_steps`; an earlier step
    if `missing_s` is negative. None if the plan saves nothing."""
    if saving_s is None or saving_s <= 0:
        return None
    return max(0, num_steps + math.ceil(missing_s / saving_s))


def _left_s(tuner: TunerSnapshot, mode: str, num_operators: int) -> float | None:
    """Returns how many seconds the user still waits in mode="max". None in other modes: compiles run in the background
    there, and their small cost to the user is not known in advance."""
    return forecast(tuner["arms"], num_operators).left_s if mode == "max" else None


def _saving(tuner: TunerSnapshot, plan: str) -> float | None:
    """Returns by how many seconds a step of the plan is shorter than an eager step; None without a paired timing."""
    arm = next((arm for arm in tuner["arms"] if arm["name"] == plan), None)
    if arm is None or plan == EAGER or tuner["eager_paired_seconds"] is None or ratio(arm, tuner) is None:
        return None
    return tuner["eager_paired_seconds"] - (step_seconds(arm, tuner) or 0.0)


def _best_saving(tuner: TunerSnapshot) -> float | None:
    """Returns the largest `_saving` of all plans that have not lost, failed or been rejected; None if none is known."""
    alive = [arm for arm in tuner["arms"] if arm["verdict"] != "lost" and arm["state"] not in REFUSED]
    return max((saving for arm in alive if (saving := _saving(tuner, arm["name"])) is not None), default=None)


def _saved_s(tuner: TunerSnapshot, saving_s: float | None) -> float:
    """Returns the seconds saved so far. Trials of slow plans count as cost and not as negative savings.

    If the plan comes from the database, eager steps are timed only in re-checks: `saving_s` then stands for each step.
    """
    ledger, decision = tuner["ledger"], tuner["decision"]
    if decision is not None and decision["from_database"]:
        return (saving_s or 0.0) * (ledger["steps"] - decision["step"])
    return ledger["saved_seconds"] + ledger["trial_seconds"]
