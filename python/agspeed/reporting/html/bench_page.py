# SPDX-License-Identifier: Apache-2.0
"""Writes the rows of `agspeed comm bench` as one self-contained HTML page: a plot per collective, and a table.

The page looks like a report's page and follows the rules of all pages (pages.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from agspeed.reporting import format as fmt
from agspeed.reporting.html import pages
from agspeed.reporting.html.svg import Drawing, Logarithmic, text_width

__all__ = ["plot", "render"]

Json = Mapping[str, Any]

_SIZES = (("full", 1100.0), ("wide", 530.0), ("narrow", 330.0))
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 320.0, 64.0, 16.0, 20.0, 44.0
_NUM_COLOURS = 6


class _Figure(NamedTuple):
    collective: str
    legend: list[tuple[int, str]]  # colour, algorithm
    drawings: list[Markup]


def render(document: Json) -> str:
    """Returns the page for a document of `agspeed comm bench --json`."""
    collectives = list(dict.fromkeys(row["collective"] for row in document["rows"]))
    figures = [
        _Figure(
            name,
            list(enumerate(_algorithms(document, name))),
            [plot(document, name, width, css) for css, width in _SIZES],
        )
        for name in collectives
    ]
    style = Markup(pages.asset("page.css"))
    template = pages.template("bench_page.html.j2")
    return template.render(document=document, figures=figures, style=style, colours=_NUM_COLOURS)


def plot(document: Json, collective: str, width: float, css: str) -> Markup:
    """Returns a plot of bus bandwidth over size, both logarithmic, with a line per algorithm and, if it is known, the
    speed of the link."""
    rows = [row for row in document["rows"] if row["collective"] == collective]
    link = document["link_gbytes_per_s"]
    speeds = [row["bus_gbytes_per_s"] for row in rows] + ([link] if link else [])
    x = Logarithmic(*_decades([row["bytes"] for row in rows], 2), _LEFT, width - _RIGHT)
    y = Logarithmic(*_decades(speeds, 10), _HEIGHT - _BOTTOM, _TOP)
    drawing = Drawing(width, _HEIGHT, f"{collective}: bus bandwidth", _description(rows), css)
    _axes(drawing, x, y, width)
    if link:
        drawing.line(_LEFT, y(link), width - _RIGHT, y(link), "limit")
        drawing.text(width - _RIGHT, y(link) - 5, "the link", "dim", "end")
    for index, algorithm in enumerate(_algorithms(document, collective)):
        colour = f"series-{index % _NUM_COLOURS}"
        own = sorted((row for row in rows if row["algorithm"] == algorithm), key=lambda row: row["bytes"])
        drawing.polyline([(x(row["bytes"]), y(row["bus_gbytes_per_s"])) for row in own], f"curve {colour}")
        for row in own:
            drawing.circle(x(row["bytes"]), y(row["bus_gbytes_per_s"]), 4, f"mark {colour}", _words(row))
    return drawing.markup()


def _algorithms(document: Json, collective: str) -> list[str]:
    return list(dict.fromkeys(row["algorithm"] for row in document["rows"] if row["collective"] == collective))


def _decades(values: Sequence[float], base: int) -> tuple[float, float]:
    """Returns the powers of `base` below and above positive values, at least one step apart."""
    low = math.floor(math.log(min(values), base) + 1e-9)
    high = math.ceil(math.log(max(values), base) - 1e-9)
    return float(base) ** low, float(base) ** max(high, low + 1)


def _axes(drawing: Drawing, x: Logarithmic, y: Logarithmic, width: float) -> None:
    for tick in _powers(x, 2, int((width - _LEFT) / 62)):
        drawing.line(x(tick), _TOP, x(tick), _HEIGHT - _BOTTOM, "grid")
        drawing.text(x(tick), _HEIGHT - _BOTTOM + 16, fmt.size(tick).replace(".0 ", " "), "tick", "middle")
    for tick in _powers(y, 10, 8):
        drawing.line(_LEFT, y(tick), width - _RIGHT, y(tick), "grid")
        label = f"{tick:g} GB/s"
        drawing.text(max(_LEFT - 6, text_width(label)), y(tick) + 4, label, "tick", "end")


def _powers(scale: Logarithmic, base: int, most: int) -> list[float]:
    """Returns the scale's powers of `base`, thinned out to about `most` at most."""
    low, high = round(math.log(scale.low, base)), round(math.log(scale.high, base))
    step = max(-(-(high - low) // max(most, 1)), 1)
    return [float(base) ** power for power in range(low, high + 1, step)]


def _words(row: Json) -> str:
    taken = fmt.milliseconds(row["microseconds"] / 1000)
    wrong = "" if row["is_correct"] else ", wrong result"
    return f"{row['algorithm']}, {fmt.size(row['bytes'])}: {row['bus_gbytes_per_s']:.3f} GB/s, {taken}{wrong}"


def _description(rows: Sequence[Json]) -> str:
    best = max(rows, key=lambda row: float(row["bus_gbytes_per_s"]))
    return f"Best: {_words(best)}"
