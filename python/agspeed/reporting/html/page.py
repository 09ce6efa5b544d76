# SPDX-License-Identifier: Apache-2.0
"""Writes the report as one HTML file (pages.py), readable on a phone and in dark mode.

The texts in a report come from the user's model and are not trusted. So the template and the drawings escape all of
them. The page's content security policy allows only the script page.js (by its hash) and no requests.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from agspeed.reporting import format as fmt
from agspeed.reporting import summary
from agspeed.reporting.html import charts, pages, step_chart, timeline_chart
from agspeed.reporting.html.glossary import TERMS

__all__ = ["render"]

# (CSS class, drawing width): at any window width, page.css shows exactly one of a figure's drawings.
_HALF = (("wide", 530.0), ("narrow", 330.0))
_FULL = (("full", 1100.0), ("wide", 530.0), ("narrow", 330.0))


class Figure(NamedTuple):
    """A chart in all its widths, or the sentence to show if there is no chart."""

    title: str
    note: str
    drawings: list[Markup]
    empty: str


def render(report: Mapping[str, Any]) -> str:
    """Returns the page for a validated report."""
    script = pages.asset("page.js")
    return pages.template("page.html.j2").render(
        report=report,
        headline=summary.headline(report),
        answers=summary.answers(report),
        next_steps=summary.next_steps(report),
        group=summary.group,
        stragglers=summary.stragglers,
        codec=summary.codec,
        units=summary.units,
        comparison=summary.comparison,
        mean_ms=summary.mean_ms,
        retained_memory=summary.retained_memory,
        timeline=_timeline(report),
        step=_step(report),
        steps_timeline=[drawing for css, width in _FULL if (drawing := timeline_chart.by_steps(report, width, css))],
        columns=_columns(report),
        plans=[plan for plan in report["plans"] if not fmt.is_folded(plan)],
        combined_plans=[plan for plan in report["plans"] if fmt.is_folded(plan)],
        phase_kinds=timeline_chart.phase_kinds(report),
        pause_kinds=timeline_chart.pause_kinds(report),
        terms=TERMS,
        share_kinds=list(dict.fromkeys(share["kind"] for share in report["time_shares"])),
        style=Markup(pages.asset("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _step(report: Mapping[str, Any]) -> Figure:
    return _figure(
        report,
        "One step of the group",
        "Above: the backward. Dot: a bucket has its last gradient. Bar: it is reduced. What lies behind the line, the"
        " last gradient, keeps the step waiting.",
        "",
        step_chart.by_bucket,
        _FULL,
    )


def _timeline(report: Mapping[str, Any]) -> Figure:
    return _figure(
        report,
        "Step time over the run",
        f"{timeline_chart.stood_still(report)} Line: mean of a step. Band: up to the slowest. Hatched: stood still.",
        "No step has been timed yet.",
        timeline_chart.by_time,
        _FULL,
    )


def _columns(report: Mapping[str, Any]) -> list[list[Figure]]:
    """Returns the charts in two columns of about the same height."""
    figure = functools.partial(_figure, report)
    candidates, errors, *others = [
        figure("Candidates", "Speed against eager, the line at 1 ×, with intervals; right of it is faster.",
               "No candidate has been timed.", charts.candidates),
        figure("Errors against fp64", "Dot: each candidate's error; grey: eager's own; red: the numerics gate's limit.",
               "The numerics gate has not run.", charts.errors),
        figure("Where time goes", "An average step of the plan that ran last, its parts in milliseconds.",
               "The step has not been broken down.", charts.time_shares),
        figure("Memory", "Peak bytes of live tensors; a candidate beyond the limit loses.",
               "Memory has not been measured.", charts.memory),
        figure("Break-even", "Seconds won minus seconds that tuning took from training.",
               "There is no saving to earn the cost back with.", charts.break_even),
    ]  # fmt: skip
    return [[candidates, errors], others]


def _figure(
    report: Mapping[str, Any],
    title: str,
    note: str,
    empty: str,
    draw: Callable[[Mapping[str, Any], float, str], Markup | None],
    sizes: tuple[tuple[str, float], ...] = _HALF,
) -> Figure:
    drawings = [draw(report, width, css) for css, width in sizes]
    return Figure(title, note, [drawing for drawing in drawings if drawing is not None], empty)
