# SPDX-License-Identifier: Apache-2.0
"""Makes the parts of a session's report about plans, regions and their candidates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from agspeed.regions.outcome import Outcome
from agspeed.regions.plan import EAGER, candidate_of
from agspeed.regions.state import State
from agspeed.reporting import listing, parts
from agspeed.reporting.parts import Json
from agspeed.tuning import plan_times

if TYPE_CHECKING:
    from agspeed._native import TunerArmSnapshot, TunerRatio, TunerSnapshot
    from agspeed.regions.region import Region

Shown = Literal["chosen", "slower", "wrong", "memory", "failed", "skipped", "pending"]
"""The states of candidates in a report; schema.json explains them."""


def plan(arm: TunerArmSnapshot, tuner: TunerSnapshot, regions: Sequence[Region]) -> Json:
    """Shows a plan."""
    found = [region.outcomes.get(candidate_of(arm["name"], region.index)) for region in regions]
    outcomes = [outcome for outcome in found if outcome is not None]
    ratio, seconds = plan_times.ratio(arm, tuner), plan_times.step_seconds(arm, tuner)
    return parts.candidate(
        arm["name"],
        state=plan_state(arm, tuner, outcomes),
        reason=arm["reason"] or None,
        compile_s=sum(outcome.compile_seconds for outcome in outcomes) if outcomes else None,
        gate=_worst_gate(outcomes),
        speedup=speedup(ratio),
        step_ms=1e3 * seconds if seconds is not None else None,
        cold=plan_times.is_cold(arm, tuner),
        peak_bytes=arm["peak_bytes"] or None,
    )


def plan_state(arm: TunerArmSnapshot, tuner: TunerSnapshot, outcomes: Sequence[Outcome]) -> Shown:
    """Returns the state of a plan. outcomes: of its candidates."""
    decision = tuner["decision"]
    if decision and decision["arm"] == arm["name"]:
        return "chosen"
    match arm["state"]:
        case State.FAILED:
            return "failed"
        case State.SKIPPED:
            return "skipped"
        case State.REJECTED:
            states = [_state(outcome) for outcome in outcomes if not outcome.usable]
            return "skipped" if states and "wrong" not in states else "wrong"
    if arm["is_too_large"]:
        return "memory"
    if arm["name"] == EAGER or arm["verdict"] == "lost" or (decision and arm["ratio"]):
        return "slower"
    return "skipped" if decision else "pending"


def region(shown: Region, plan: str) -> Json:
    """Shows a region while `plan` runs."""
    outcome = shown.outcomes.get(shown.selected)
    runner = outcome.runner if outcome is not None else None
    place = location(shown.where)
    return parts.region(
        f"region {shown.index}",
        location=place,
        operators=int(getattr(runner, "num_operators", shown.num_operators)),
        native_operators=int(getattr(runner, "native_operators", 0)),
        shapes=Counter([_signature(shown)]),
        chosen=shown.selected if plan != EAGER else EAGER,
        candidates=[_candidate(outcome, shown.selected) for outcome in shown.outcomes.values()],
        source=listing.excerpt(place["file"], place["line"]) if place is not None else None,
        graph=listing.shortened(shown.gm.print_readable(print_output=False)),
        generated=listing.shortened(getattr(runner, "generated", "")),
    )


def speedup(ratio: TunerRatio | None) -> Json | None:
    """Inverts the tuner's ratio, which is step time over eager's: the report shows eager's time over the plan's."""
    if ratio is None or not (ratio["estimate"] and ratio["low"] and ratio["high"]):
        return None
    low, high = 1 / ratio["high"], 1 / ratio["low"]
    return parts.interval(1 / ratio["estimate"], low, high, pairs=ratio["pairs"], confidence=ratio["confidence"])


def location(where: str) -> Json | None:
    path, _, line = where.rpartition(":")
    return parts.location(path, int(line)) if path and line.isdigit() else None


def _candidate(outcome: Outcome, selected: str) -> Json:
    is_chosen = outcome.candidate == selected and outcome.usable
    return parts.candidate(
        outcome.candidate,
        state="chosen" if is_chosen else _state(outcome),
        reason=outcome.reason or None,
        compile_s=outcome.compile_seconds,
        gate=outcome.gate or None,
    )


def _state(outcome: Outcome) -> Shown:
    """Returns the state of a candidate that does not run. A candidate that the gate could not compare was skipped."""
    match outcome.state:
        case State.READY:
            return "pending"
        case State.FAILED:
            return "failed"
        case State.REJECTED if outcome.gate.get("verdict") == "rejected":
            return "wrong"
    return "skipped"


def _worst_gate(outcomes: Sequence[Outcome]) -> Json | None:
    """Returns the gate result to show for a whole plan: the first failed one, else the one with the largest error."""
    gates = [outcome.gate for outcome in outcomes if outcome.gate]
    failed = [gate for gate in gates if gate["verdict"] != "passed"]
    if failed:
        return failed[0]
    return max(gates, key=lambda gate: _size((gate["gradients"] or gate["forward"] or {}).get("max")), default=None)


def _size(error: object) -> float:
    return float(error) if isinstance(error, (int, float)) else math.inf if error else 0.0


def _signature(region: Region) -> str:
    tensors = [value for value in region.example_inputs if isinstance(value, torch.Tensor)]
    data = [value for value in tensors if not isinstance(value, torch.nn.Parameter)]
    shown = [f"{str(value.dtype).removeprefix('torch.')}{[str(n) for n in value.shape]}" for value in data[:4]]
    return ", ".join(shown).replace("'", "") or "no tensor inputs"
