# SPDX-License-Identifier: Apache-2.0
"""The SVG tools for the report's charts: a drawing, scales, ticks.

Colours come from CSS classes, so one drawing works in light and dark mode. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

__all__ = ["Drawing", "Linear", "Logarithmic", "shorten", "text_width", "ticks"]

_CHARACTER_WIDTH = 6.7
_HATCH_PITCH = 9


class Drawing:
    """Collects elements and makes one <svg> of them, with a title and a description for screen readers."""

    def __init__(self, width: float, height: float, title: str, description: str, css: str = "") -> None:
        self.width, self.height = width, height
        self._open = Markup(
            '<svg class="{}" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}" data-chart="{}">'
            "<title>{}</title><desc>{}</desc>"
        ).format(css, width, height, f"{title}. {description}", title, title, description)
        self._parts: list[Markup] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str, title: str = "") -> None:
        shape = '<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"><title>{}</title></line>'
        self._add(shape, x1, y1, x2, y2, css, title)

    def rect(self, x: float, y: float, width: float, height: float, css: str, title: str = "") -> None:
        shape = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="{}" class="{}"><title>{}</title></rect>'
        radius = 0 if css.startswith("phase") else 2
        self._add(shape, x, y, max(width, 0.0), max(height, 0.0), radius, css, title)

    def circle(self, x: float, y: float, radius: float, css: str, title: str = "") -> None:
        shape = '<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" class="{}"><title>{}</title></circle>'
        self._add(shape, x, y, radius, css, title)

    def text(self, x: float, y: float, words: str, css: str = "", anchor: str = "start") -> None:
        self._add('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>', x, y, css, anchor, words)

    def upright(self, x: float, y: float, words: str, css: str) -> None:
        """Adds text that runs from bottom to top, centred at (x, y)."""
        shape = '<text transform="translate({:.1f} {:.1f}) rotate(-90)" class="{}" text-anchor="middle">{}</text>'
        self._add(shape, x, y, css, words)

    def polyline(self, points: Sequence[tuple[float, float]], css: str) -> None:
        self._add('<polyline points="{}" class="{}"/>', _points(points), css)

    def polygon(self, points: Sequence[tuple[float, float]], css: str) -> None:
        self._add('<polygon points="{}" class="{}"/>', _points(points), css)

    def hatched(self, x: float, y: float, width: float, height: float, css: str, title: str = "") -> None:
        """Adds an opaque rectangle with diagonal lines every few pixels."""
        self.rect(x, y, width, height, "blank")
        self.rect(x, y, width, height, f"{css} hatched", title)
        starts = range(0, math.ceil(width + height), _HATCH_PITCH)
        lines = ((min(s, width), max(s - width, 0.0), max(s - height, 0.0), min(s, height)) for s in starts)
        path = "".join(f"M{x + x1:.1f},{y + y1:.1f}L{x + x2:.1f},{y + y2:.1f}" for x1, y1, x2, y2 in lines)
        self._add('<path d="{}" class="{} hatch"/>', path, css)

    def data(self, name: str, value: str) -> None:
        """Adds an invisible group with an attribute for the page's script."""
        self._add('<g data-{}="{}"></g>', Markup(escape(name)), value)

    def markup(self) -> Markup:
        return self._open + Markup("").join(self._parts) + Markup("</svg>")

    def _add(self, template: str, *values: object) -> None:
        self._parts.append(Markup(template).format(*values))


@dataclass(frozen=True)
class Linear:
    """Maps [low, high] to [start, end]; values outside are clamped."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = 0.0 if span <= 0 else (value - self.low) / span
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)


@dataclass(frozen=True)
class Logarithmic:
    """Like `Linear` over the decimal logarithm; zero counts as the low end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        linear = Linear(math.log10(self.low), math.log10(self.high), self.start, self.end)
        return linear(math.log10(value) if value > 0 else math.log10(self.low))


def ticks(low: float, high: float, most: int) -> list[float]:
    """Returns about `most` round values, or fewer, within [low, high]."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(span / most))
    step = next(magnitude * factor for factor in (1, 2, 5, 10, 20) if span / (magnitude * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def text_width(words: str) -> float:
    """Returns a generous estimate of a text's width: it cannot be measured without a browser."""
    return len(words) * _CHARACTER_WIDTH


def shorten(words: str, room: float) -> str:
    """Cuts `words` to `room` pixels."""
    keep = max(int(room / _CHARACTER_WIDTH), 2)
    return words if len(words) <= keep else words[: keep - 1] + "…"


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
