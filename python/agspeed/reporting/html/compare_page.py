# SPDX-License-Identifier: Apache-2.0
"""Writes two reports as one self-contained HTML page: both timelines, the changes, and the conditions that differ.

The page looks like a report's page and follows the rules of all pages (pages.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from agspeed.reporting import compare, summary
from agspeed.reporting.html import pages, timeline_chart

__all__ = ["render"]

Json = Mapping[str, Any]

_SIZES = (("wide", 530.0), ("narrow", 330.0))


class _Side(NamedTuple):
    label: str
    subject: str
    headline: str
    created_at: str
    stood_still: str
    drawings: list[Markup]


def render(before: Json, after: Json) -> str:
    """Returns the page for two validated reports."""
    return pages.template("compare_page.html.j2").render(
        sides=[_side("Before", before), _side("After", after)],
        figures=compare.compare(before, after),
        conditions=compare.differing_conditions(before, after),
        style=Markup(pages.asset("page.css")),
    )


def _side(label: str, report: Json) -> _Side:
    header = report["header"]
    drawings = [drawing for css, width in _SIZES if (drawing := timeline_chart.by_time(report, width, css))]
    return _Side(
        label,
        header["subject"] or "model",
        summary.headline(report),
        header["created_at"],
        timeline_chart.stood_still(report),
        drawings,
    )
