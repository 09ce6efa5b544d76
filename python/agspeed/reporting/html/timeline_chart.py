# SPDX-License-Identifier: Apache-2.0
"""Step times over the run: the mean line, the band up to the slowest step, input wait at the bottom, phases shaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from agspeed.reporting.html.svg import Drawing, Linear, text_width, ticks

__all__ = ["draw", "phase_kinds"]

Json = Mapping[str, Any]

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 300.0, 56.0, 12.0, 24.0, 42.0
_NARROW = 400


class _Point(NamedTuple):
    step: int
    ms: float
    max_ms: float
    wait_ms: float


def draw(report: Json, width: float, css: str) -> Markup | None:
    """The chart at `width`, with the points attached for the page's pointer read-out."""
    timeline = report["timeline"]
    if not timeline["step"]:
        return None
    points = _points(timeline, most=int(width / 2))
    height = _HEIGHT if width > _NARROW else 250.0
    drawing = Drawing(width, height, "Step time over the run", _description(timeline), css)
    x = Linear(0, max(timeline["steps"] - 1, 1), _LEFT, width - _RIGHT)
    y = Linear(0, _ceiling(points), height - _BOTTOM, _TOP)
    _phases(drawing, timeline["phases"], x, y)
    _axes(drawing, x, y, width, height)
    _series(drawing, points, x, y)
    drawing.data("points", json.dumps([[round(x(p.step), 1), *p] for p in points]))
    drawing.line(0, _TOP, 0, height - _BOTTOM, "cursor")
    return drawing.markup()


def phase_kinds(report: Json) -> list[str]:
    """The kinds of phases that occur, for the legend, in order of appearance."""
    return list(dict.fromkeys(phase["kind"] for phase in report["timeline"]["phases"]))


def _points(timeline: Json, most: int) -> list[_Point]:
    columns = zip(timeline["step"], timeline["ms"], timeline["max_ms"], timeline["wait_ms"], strict=True)
    points = [_Point(*row) for row in columns]
    group = -(-len(points) // most)
    return [_merge(points[start : start + group]) for start in range(0, len(points), group)]


def _merge(points: Sequence[_Point]) -> _Point:
    mean_ms = sum(point.ms for point in points) / len(points)
    mean_wait = sum(point.wait_ms for point in points) / len(points)
    slowest = max(point.max_ms for point in points)
    return _Point(points[0].step, round(mean_ms, 3), round(slowest, 3), round(mean_wait, 3))


def _ceiling(points: Sequence[_Point]) -> float:
    """A few very slow steps (captures, compiles) must not flatten the rest: they are cut off at the top."""
    means = sorted(point.ms for point in points)
    usual = means[int(0.98 * (len(means) - 1))]
    return max(min(max(point.max_ms for point in points), usual * 1.8), 1e-6)


def _description(timeline: Json) -> str:
    phases = "; ".join(
        f"{phase['kind']}{' of ' + phase['candidate'] if phase['candidate'] else ''} "
        f"steps {phase['first_step']:,} to {phase['last_step']:,}"
        for phase in timeline["phases"][:20]
    )
    return f"{timeline['steps']:,} steps. {phases}"


def _phases(drawing: Drawing, phases: Sequence[Json], x: Linear, y: Linear) -> None:
    free_from = 0.0
    for phase in phases:
        left, right = x(phase["first_step"]), x(phase["last_step"] + 1)
        name = phase["kind"] if phase["candidate"] is None else f"{phase['kind']} {phase['candidate']}"
        title = f"{name}: steps {phase['first_step']:,} to {phase['last_step']:,}"
        drawing.rect(left, y.end, max(right - left, 1.5), y.start - y.end, f"phase phase-{phase['kind']}", title)
        label = next((text for text in (name, phase["kind"]) if text_width(text) + 6 < right - left), None)
        if label is not None and left >= free_from:
            drawing.text(left + 3, y.end - 8, label, "tick")
            free_from = left + text_width(label)


def _axes(drawing: Drawing, x: Linear, y: Linear, width: float, height: float) -> None:
    unit, scale = ("µs", 1000.0) if y.high < 1 else ("s", 0.001) if y.high >= 2000 else ("ms", 1.0)
    for tick in ticks(0, y.high * scale, 5):
        drawing.line(x.start, y(tick / scale), x.end, y(tick / scale), "grid")
        drawing.text(x.start - 6, y(tick / scale) + 4, f"{tick:g} {unit}", "tick", "end")
    for tick in ticks(0, x.high, 10 if width > 800 else 4):
        drawing.text(x(tick), y.start + 18, f"{tick:,.0f}", "tick", "middle")
    drawing.text((x.start + x.end) / 2, height - 6, "training step", "dim", "middle")


def _series(drawing: Drawing, points: Sequence[_Point], x: Linear, y: Linear) -> None:
    band = [(x(p.step), y(p.max_ms)) for p in points] + [(x(p.step), y(p.ms)) for p in reversed(points)]
    drawing.polygon(band, "band")
    wait = [(x(p.step), y(p.wait_ms)) for p in points]
    drawing.polygon([(x(points[0].step), y(0)), *wait, (x(points[-1].step), y(0))], "kind-input-wait area-wait")
    drawing.polyline([(x(p.step), y(p.ms)) for p in points], "series")
