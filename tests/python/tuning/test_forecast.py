# SPDX-License-Identifier: Apache-2.0
"""The forecast of the time for tuning: the share grows with the work done, and learns from the times of compiles."""

from __future__ import annotations

from typing import Any

import pytest

from agspeed.tuning.forecast import forecast, guess


def arm(
    name: str, state: str = "pending", verdict: str = "open", pairs: int = 0, seconds: float = 0.0
) -> dict[str, Any]:
    return {
        "name": name,
        "state": state,
        "verdict": verdict,
        "ratio": {"pairs": pairs} if pairs else None,
        "background_seconds": seconds,
        "foreground_seconds": 0.0,
        "seconds": {"p50": 0.1},
    }


def test_the_share_grows_from_nothing_to_all() -> None:
    stages = [
        [arm("native"), arm("inductor")],
        [arm("native", "ready", seconds=2), arm("inductor")],
        [arm("native", "ready", pairs=20, seconds=2), arm("inductor")],
        [arm("native", "ready", "best", pairs=30, seconds=2), arm("inductor", "compiled", seconds=20)],
        [arm("native", "ready", "best", pairs=30, seconds=2), arm("inductor", "rejected", seconds=20)],
    ]
    shares = [forecast(arms, num_operators=100).share for arms in stages]
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0


def test_eager_costs_nothing() -> None:
    assert forecast([arm("eager", "ready")], 100).left_s == 0.0
    assert guess(["eager"], 100) == 0.0


def test_a_slow_machine_is_expected_to_stay_slow() -> None:
    usual = forecast([arm("native", "ready", "best", seconds=2.5), arm("inductor")], 100)
    slow = forecast([arm("native", "ready", "best", seconds=25), arm("inductor")], 100)
    assert slow.left_s > 5 * usual.left_s


@pytest.mark.parametrize("name", ["inductor", "native+r2:inductor"])
def test_a_combined_plan_costs_what_its_dearest_candidate_does(name: str) -> None:
    assert guess([name], 50) == pytest.approx(guess(["inductor"], 50))


def test_arms_that_are_through_are_counted() -> None:
    found = forecast([arm("native", "failed"), arm("inductor", "ready", "lost", 12), arm("aot")], 10)
    assert (found.num_through, found.num_arms) == (2, 3)
