# SPDX-License-Identifier: Apache-2.0
"""Draws step times over the run: a line for the mean, a band up to the slowest step, input wait at the bottom, and
shaded phases.

Over wall time, pauses of training are hatched blocks with their seconds. Over step numbers, pauses have no width.
"""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from agspeed.reporting import format as fmt
from agspeed.reporting.html.svg import Drawing, Linear, text_width, ticks

__all__ = ["by_steps", "by_time", "pause_kinds", "phase_kinds", "stood_still"]

Json = Mapping[str, Any]

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 300.0, 56.0, 12.0, 24.0, 42.0
_NARROW = 400
_LEAST_WIDTH, _UPRIGHT_WIDTH = 2.0, 18.0


class _Point(NamedTuple):
    step: int
    ms: float
    max_ms: float
    wait_ms: float
    at_s: float


class _Clock:
    """Maps step numbers to seconds, with linear interpolation between the points of a timeline."""

    def __init__(self, timeline: Json) -> None:
        last = (timeline["steps"] - timeline["step"][-1]) * (timeline["ms"][-1] + timeline["wait_ms"][-1]) / 1000
        ends = [pause["at_s"] + pause["seconds"] for pause in timeline["pauses"]]
        self._steps = [*timeline["step"], timeline["steps"]]
        self._seconds = [*timeline["at_s"], max([timeline["at_s"][-1] + last, *ends])]

    @property
    def end(self) -> float:
        return float(self._seconds[-1])

    def __call__(self, step: int) -> float:
        index = min(max(bisect.bisect_right(self._steps, step), 1), len(self._steps) - 1)
        (low, high), (begin, end) = self._steps[index - 1 : index + 1], self._seconds[index - 1 : index + 1]
        return float(begin + (end - begin) * (step - low) / max(high - low, 1))


def by_time(report: Json, width: float, css: str) -> Markup | None:
    """Returns the chart over seconds, with the pauses. The points are attached for the page's script."""
    timeline = report["timeline"]
    if not timeline["step"]:
        return None
    clock = _Clock(timeline)
    points = _points(timeline, most=int(width / 2))
    drawing, y = _empty("Step time over the run", timeline, points, width, css)
    x = Linear(0, max(clock.end, 1e-6), _LEFT, width - _RIGHT)
    _phases(drawing, timeline["phases"], [x(clock(p["first_step"])) for p in timeline["phases"]],
            [x(clock(p["last_step"] + 1)) for p in timeline["phases"]], y)  # fmt: skip
    _axes(drawing, x, y, width, "seconds since optimize was called")
    for run in _between(points, timeline["pauses"]):
        _series(drawing, run, [x(point.at_s) for point in run], y)
    for pause in timeline["pauses"]:
        _pause(drawing, pause, x, y)
    _attach(drawing, points, [x(point.at_s) for point in points], y)
    return drawing.markup()


def by_steps(report: Json, width: float, css: str) -> Markup | None:
    """Returns the chart over step numbers."""
    timeline = report["timeline"]
    if not timeline["step"]:
        return None
    points = _points(timeline, most=int(width / 2))
    drawing, y = _empty("Step time by step", timeline, points, width, css)
    x = Linear(0, max(timeline["steps"] - 1, 1), _LEFT, width - _RIGHT)
    _phases(drawing, timeline["phases"], [x(p["first_step"]) for p in timeline["phases"]],
            [x(p["last_step"] + 1) for p in timeline["phases"]], y)  # fmt: skip
    _axes(drawing, x, y, width, "training step")
    places = [x(point.step) for point in points]
    _series(drawing, points, places, y)
    _attach(drawing, points, places, y)
    return drawing.markup()


def phase_kinds(report: Json) -> list[str]:
    """Returns the kinds of phases that occur, in order of appearance, for the legend."""
    return list(dict.fromkeys(phase["kind"] for phase in report["timeline"]["phases"]))


def pause_kinds(report: Json) -> list[str]:
    """Returns the kinds of pauses that occur, in order of appearance."""
    return list(dict.fromkeys(pause["kind"] for pause in report["timeline"]["pauses"]))


def stood_still(report: Json) -> str:
    """Returns a sentence that says how long training stood still and for what."""
    seconds: Counter[str] = Counter()
    for pause in report["timeline"]["pauses"]:
        seconds[pause["kind"]] += pause["seconds"]
    if not seconds:
        return "Training never stood still."
    parts = ", ".join(f"{kind} {fmt.seconds(spent)}" for kind, spent in seconds.most_common())
    return f"Training stood still for {fmt.seconds(sum(seconds.values()))}: {parts}."


def _empty(title: str, timeline: Json, points: Sequence[_Point], width: float, css: str) -> tuple[Drawing, Linear]:
    """Returns an empty drawing and its scale of milliseconds."""
    height = _HEIGHT if width > _NARROW else 250.0
    return Drawing(width, height, title, _description(timeline), css), Linear(
        0, _ceiling(points), height - _BOTTOM, _TOP
    )


def _points(timeline: Json, most: int) -> list[_Point]:
    columns = (timeline[name] for name in ("step", "ms", "max_ms", "wait_ms", "at_s"))
    points = [_Point(*row) for row in zip(*columns, strict=True)]
    group = -(-len(points) // most)
    return [_merge(points[start : start + group]) for start in range(0, len(points), group)]


def _merge(points: Sequence[_Point]) -> _Point:
    mean_ms = sum(point.ms for point in points) / len(points)
    mean_wait = sum(point.wait_ms for point in points) / len(points)
    slowest = max(point.max_ms for point in points)
    return _Point(points[0].step, round(mean_ms, 3), round(slowest, 3), round(mean_wait, 3), points[0].at_s)


def _ceiling(points: Sequence[_Point]) -> float:
    """Returns the upper end of the scale. A few very slow steps (captures, compiles) are cut off at the top, so that
    they do not flatten the rest."""
    means = sorted(point.ms for point in points)
    usual = means[int(0.98 * (len(means) - 1))]
    if len(means) < 50:
        usual = means[len(means) // 2]
    return max(min(max(point.max_ms for point in points), usual * 1.8), 1e-6)


def _description(timeline: Json) -> str:
    phases = "; ".join(
        f"{phase['kind']}{' of ' + phase['candidate'] if phase['candidate'] else ''} "
        f"steps {phase['first_step']:,} to {phase['last_step']:,}"
        for phase in timeline["phases"][:20]
    )
    pauses = "; ".join(_words(pause) for pause in timeline["pauses"][:20])
    return f"{timeline['steps']:,} steps. {phases}. {pauses}"


def _words(pause: Json) -> str:
    candidate = f" {pause['candidate']}" if pause["candidate"] else ""
    return f"{pause['kind']}{candidate} {fmt.seconds(pause['seconds'])}"


def _phases(
    drawing: Drawing, phases: Sequence[Json], lefts: Sequence[float], rights: Sequence[float], y: Linear
) -> None:
    free_from = 0.0
    for phase, left, right in zip(phases, lefts, rights, strict=True):
        name = phase["kind"] if phase["candidate"] is None else f"{phase['kind']} {phase['candidate']}"
        title = f"{name}: steps {phase['first_step']:,} to {phase['last_step']:,}"
        drawing.rect(left, y.end, max(right - left, 1.5), y.start - y.end, f"phase phase-{phase['kind']}", title)
        label = next((text for text in (name, phase["kind"]) if text_width(text) + 6 < right - left), None)
        if label is not None and left >= free_from:
            drawing.text(left + 3, y.end - 8, label, "tick")
            free_from = left + text_width(label)


def _pause(drawing: Drawing, pause: Json, x: Linear, y: Linear) -> None:
    """Draws a hatched block with its seconds and, if there is room, its name. Narrow blocks have only a tooltip."""
    left, right = x(pause["at_s"]), x(pause["at_s"] + pause["seconds"])
    width, words = max(right - left, _LEAST_WIDTH), _words(pause)
    drawing.hatched(left, y.end, width, y.start - y.end, f"pause-{pause['kind']}", f"stood still: {words}")
    middle, height = left + width / 2, (y.start + y.end) / 2
    label = next((text for text in (words, fmt.seconds(pause["seconds"])) if text_width(text) + 2 < width), None)
    if label is not None:
        drawing.text(middle, height, label, "strong", "middle")
    elif width >= _UPRIGHT_WIDTH and text_width(words) < y.start - y.end:
        drawing.upright(middle + 4, height, words, "strong")


def _axes(drawing: Drawing, x: Linear, y: Linear, width: float, title: str) -> None:
    unit, scale = ("µs", 1000.0) if y.high < 1 else ("s", 0.001) if y.high >= 2000 else ("ms", 1.0)
    for tick in ticks(0, y.high * scale, 5):
        drawing.line(x.start, y(tick / scale), x.end, y(tick / scale), "grid")
        drawing.text(x.start - 6, y(tick / scale) + 4, f"{tick:g} {unit}", "tick", "end")
    for tick in ticks(0, x.high, 10 if width > 800 else 4):
        drawing.text(x(tick), y.start + 18, f"{tick:,.6g}", "tick", "middle")
    drawing.text((x.start + x.end) / 2, drawing.height - 6, title, "dim", "middle")


def _between(points: Sequence[_Point], pauses: Sequence[Json]) -> Iterator[list[_Point]]:
    """Yields runs of points without a pause inside."""
    begins = sorted(pause["at_s"] for pause in pauses)
    run: list[_Point] = []
    for point in points:
        if run and bisect.bisect_left(begins, run[-1].at_s) != bisect.bisect_left(begins, point.at_s):
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def _series(drawing: Drawing, points: Sequence[_Point], places: Sequence[float], y: Linear) -> None:
    upper = [(place, y(point.max_ms)) for place, point in zip(places, points, strict=True)]
    means = [(place, y(point.ms)) for place, point in zip(places, points, strict=True)]
    drawing.polygon([*upper, *reversed(means)], "band")
    wait = [(place, y(point.wait_ms)) for place, point in zip(places, points, strict=True)]
    drawing.polygon([(places[0], y(0)), *wait, (places[-1], y(0))], "kind-input-wait area-wait")
    drawing.polyline(means, "series")


def _attach(drawing: Drawing, points: Sequence[_Point], places: Sequence[float], y: Linear) -> None:
    """Attaches the points, which the page's script shows under the pointer."""
    rows = [[round(place, 1), *point] for place, point in zip(places, points, strict=True)]
    drawing.data("points", json.dumps(rows))
    drawing.line(0, y.end, 0, y.start, "cursor")
