# SPDX-License-Identifier: Apache-2.0
"""The results of a scenario's trials: counts and a figure beside its limit. Prints all scenarios as a table or as JSON.

Percentiles are nearest ranks. If the limit is a lower bound, "p99" is the value that 99 % of the trials reach.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fault.scenarios.rows import Scenario

__all__ = ["Result", "table"]


@dataclass
class Result:
    """The results of one scenario. The runner adds to it trial by trial."""

    scenario: Scenario
    skipped: str = ""  # the reason if it cannot run here
    trials: int = 0
    hits: int = 0  # trials in which counters show the fault
    resent: int = 0  # frames
    wrong: int = 0  # results with wrong bits
    hangs: int = 0
    errors: list[str] = field(default_factory=list)  # unexpected errors, one text per trial
    figures: list[float] = field(default_factory=list)
    quiet_ms: list[float] = field(default_factory=list)  # the longest delay before each fault, which the machine causes
    notes: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        if self.skipped:
            return True
        is_seen = self.hits == self.trials > 0 and (self.resent > 0 or not self.scenario.resends)
        return is_seen and not (self.wrong or self.hangs or self.errors)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.figures, reverse=self.scenario.figure.is_at_least)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    def to_json(self) -> dict[str, Any]:
        figure = self.scenario.figure
        found: dict[str, Any] = {"row": self.scenario.row, "fault": self.scenario.fault, "is_good": self.is_good}
        if self.skipped:
            return {**found, "skipped": self.skipped}
        return {
            **found,
            "trials": self.trials,
            "hits": self.hits,
            "frames_resent": self.resent,
            "wrong": self.wrong,
            "hangs": self.hangs,
            "errors": self.errors,
            "figure": {"name": figure.name, "unit": figure.unit, "limit": figure.limit, "is_floor": figure.is_at_least},
            "values": [round(value, 2) for value in self.figures],
            "quiet_ms": [round(value, 2) for value in self.quiet_ms],
            "notes": self.notes,
        }


_HEADINGS = (
    *("row", "fault", "trials", "hit", "wrong", "hangs", "errors", "resent"),
    *("figure", "median", "p99", "worst", "limit", "quiet p99"),
)
_NUM_TEXTS = 2  # the first columns, which are aligned to the left


def table(results: Iterable[Result]) -> str:
    """Returns one line per scenario, then the notes."""
    results = list(results)
    lines = [_HEADINGS, *(_cells(result) for result in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    shown = [_aligned(line, widths) for line in lines]
    for result in results:
        notes = [f"{name} {statistics.median(values):.4g}" for name, values in result.notes.items()]
        if notes:
            shown.append(f"{result.scenario.row} {result.scenario.fault}, medians: " + ", ".join(notes))
    return "\n".join(shown)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if column < _NUM_TEXTS else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _cells(result: Result) -> tuple[str, ...]:
    scenario, figure = result.scenario, result.scenario.figure
    if result.skipped:
        return (scenario.row, scenario.fault, "skipped", *[""] * (len(_HEADINGS) - 3))
    numbers = (result.trials, result.hits, result.wrong, result.hangs, len(result.errors), result.resent)
    shares = (0.5, 0.99, 1.0)
    measured = [f"{result.percentile(share):.0f}" if result.figures else "-" for share in shares]
    sign = ">= " if figure.is_at_least else "<= "
    limit = "" if figure.limit is None else f"{sign}{figure.limit:g}"
    quiet = sorted(result.quiet_ms)
    shown_quiet = f"{quiet[max(0, math.ceil(0.99 * len(quiet)) - 1)]:.0f} ms" if quiet else "-"
    return (
        scenario.row,
        scenario.fault,
        *map(str, numbers),
        f"{figure.name}, {figure.unit}",
        *measured,
        limit,
        shown_quiet,
    )
