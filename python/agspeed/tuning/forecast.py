# SPDX-License-Identifier: Apache-2.0
"""Estimates how long tuning will take, for the progress display of a waiting user.

The cost of an arm is estimated from its candidate and the size of the graphs. The cost of finished arms on this machine
corrects the estimate. Pure functions of the tuner's snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agspeed.regions.plan import EAGER, candidates_of
from agspeed.regions.state import REFUSED, State

if TYPE_CHECKING:
    from agspeed._native import TunerArmSnapshot

_COMPILE_S = {
    "inductor": (12.0, 0.10),
    "inductor-max-autotune": (15.0, 0.12),
    "native": (0.5, 0.02),
    "native-channels-last": (0.5, 0.02),
}
_OTHER_COMPILE_S = (0.3, 0.01)
"""Seconds per graph, and seconds per operator in it."""
_PAIRS = 30
"""Pairs of timed blocks after which most arms are decided."""
_OPERATORS_PER_MODULE = 6
_UNKNOWN_STEP_S = 0.05


@dataclass(frozen=True)
class Forecast:
    """Seconds of tuning spent so far and left, and how many of the arms are finished (`num_through`)."""

    spent_s: float
    left_s: float
    num_through: int
    num_arms: int

    @property
    def share(self) -> float:
        """The fraction of tuning that is done, in 0..1."""
        whole = self.spent_s + self.left_s
        return self.spent_s / whole if whole > 0 else 1.0


def forecast(arms: Sequence[TunerArmSnapshot], num_operators: int) -> Forecast:
    """Returns the forecast for tuning with these arms.

    Args:
        arms: as in the tuner's snapshot. Eager costs nothing; its timings give the duration of a step.
        num_operators: the number of operators in all captured graphs together.
    """
    tried = [arm for arm in arms if arm["name"] != EAGER]
    step_s = next((arm["seconds"]["p50"] for arm in arms if arm["name"] == EAGER and arm["seconds"]), _UNKNOWN_STEP_S)
    compiled = [arm for arm in tried if arm["state"] == State.READY]
    pace = _pace(compiled, num_operators)
    timing_s = 2 * _PAIRS * step_s
    through = [arm for arm in tried if _is_through(arm)]
    left_s = sum(_left_s(arm, num_operators, pace, timing_s) for arm in tried if not _is_through(arm))
    spent_s = sum(_compile_s(arm) + min(2 * _pairs(arm) * step_s, timing_s) for arm in tried)
    return Forecast(spent_s, left_s, len(through), len(tried))


def guess(names: Iterable[str], num_modules: int) -> float:
    """Returns the expected seconds of tuning with arms of these names, before anything was captured."""
    num_operators = _OPERATORS_PER_MODULE * num_modules
    timing_s = 2 * _PAIRS * _UNKNOWN_STEP_S
    return sum(_expected_compile_s(name, num_operators) + timing_s for name in names if name != EAGER)


def _is_through(arm: TunerArmSnapshot) -> bool:
    return arm["verdict"] != "open" or arm["state"] in (*REFUSED, State.SKIPPED)


def _left_s(arm: TunerArmSnapshot, num_operators: int, pace: float, timing_s: float) -> float:
    timing_left_s = timing_s * max(1 - _pairs(arm) / _PAIRS, 0.1)
    if arm["state"] == State.READY:
        return timing_left_s
    compile_left_s = pace * _expected_compile_s(arm["name"], num_operators) - _compile_s(arm)
    return max(compile_left_s, 1.0) + timing_left_s


def _pace(compiled: list[TunerArmSnapshot], num_operators: int) -> float:
    """Returns the ratio of actual to expected compile time."""
    expected = sum(_expected_compile_s(arm["name"], num_operators) for arm in compiled)
    return sum(_compile_s(arm) for arm in compiled) / expected if expected > 0 else 1.0


def _expected_compile_s(plan: str, num_operators: int) -> float:
    rates = [_COMPILE_S.get(name, _OTHER_COMPILE_S) for name in candidates_of(plan)]
    return max(once + num_operators * each for once, each in rates)


def _compile_s(arm: TunerArmSnapshot) -> float:
    return arm["background_seconds"] + arm["foreground_seconds"]


def _pairs(arm: TunerArmSnapshot) -> int:
    return arm["ratio"]["pairs"] if arm["ratio"] else 0
