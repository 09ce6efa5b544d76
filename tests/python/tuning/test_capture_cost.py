# SPDX-License-Identifier: Apache-2.0
"""The expected cost of a capture: from the model's size, or from its cost in an earlier process."""

from __future__ import annotations

from typing import Any

from agspeed.tuning.capture_cost import expected_seconds


def _row(graph: str, seconds: float | None) -> dict[str, Any]:
    return {"key": {"graph": graph}, "record": {"arm": "native", "capture_seconds": seconds}}


def test_larger_models_take_longer() -> None:
    small, large = (expected_seconds("a", count, []) for count in (4, 150))
    assert 0.1 < small < 0.5 < 1.5 < large < 4


def test_earlier_capture_of_the_same_model_is_the_best_guess() -> None:
    rows = [_row("other", 90.0), _row("a", 3.0), _row("a", 4.0), _row("a", None), {"key": None, "record": None}]
    assert expected_seconds("a", 4, rows) == 4.0


def test_records_without_a_capture_say_nothing() -> None:
    rows = [_row("a", 0.0), {"key": {"graph": "a"}, "record": {"arm": "eager"}}]
    assert expected_seconds("a", 4, rows) == expected_seconds("a", 4, [])
