# SPDX-License-Identifier: Apache-2.0
"""Draws one step of ranks that reduce gradients: the backward above and its buckets below, on one time axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from agspeed.reporting import format as fmt
from agspeed.reporting.html.svg import Drawing, Linear, shorten, ticks

__all__ = ["by_bucket"]

Json = Mapping[str, Any]

_LEFT, _RIGHT, _TOP, _PITCH, _BAR, _AXIS = 8.0, 12.0, 22.0, 34.0, 14.0, 30.0
_MAX_ROWS = 24


def by_bucket(report: Json, width: float, css: str) -> Markup | None:
    """Returns the chart; None if no step was timed. A bucket waits for its gradients (a thin line), then for its turn,
    and is then reduced (a bar)."""
    together = (report["group"] or {}).get("together") or {}
    step = together.get("step")
    if step is None:
        return None
    buckets = step["buckets"][:_MAX_ROWS]
    end = max(step["communication_done_s"], step["gradients_s"])
    x = Linear(0.0, end, _LEFT, width - _RIGHT)
    height = _TOP + _PITCH * (1 + len(buckets)) + _AXIS
    drawing = Drawing(width, height, "One step", _description(step), css)
    for tick in ticks(0.0, 1e3 * end, max(int(width / 90), 2)):
        drawing.line(x(tick / 1e3), _TOP - 6, x(tick / 1e3), height - _AXIS, "grid")
        drawing.text(x(tick / 1e3), height - _AXIS + 16, f"{tick:g} ms", "tick", "middle")
    drawing.text(_LEFT, _TOP + 4, "backward", "dim")
    _bar(drawing, x, 0, 0.0, step["gradients_s"], "kind-native", f"backward, {_ms(step['gradients_s'])}")
    for row, bucket in enumerate(buckets, start=1):
        begun, done = bucket["begun_s"], bucket["done_s"]
        words = f"bucket {row}, {fmt.size(bucket['bytes'])}"
        drawing.text(_LEFT, _TOP + _PITCH * row + 4, shorten(words, width - 16), "dim")
        middle = _TOP + _PITCH * row + 10 + _BAR / 2
        drawing.line(_LEFT, middle, x(bucket["ready_s"]), middle, "grid", f"{words}: full at {_ms(bucket['ready_s'])}")
        drawing.circle(x(bucket["ready_s"]), middle, 3, "mark series-0", f"{words}: full at {_ms(bucket['ready_s'])}")
        if begun is not None and done is not None:
            _bar(drawing, x, row, begun, done, "kind-external", f"{words}: on its way from {_ms(begun)} to {_ms(done)}")
    drawing.line(x(step["gradients_s"]), _TOP - 6, x(step["gradients_s"]), height - _AXIS, "limit", "last gradient")
    return drawing.markup()


def _bar(drawing: Drawing, x: Linear, row: int, begun: float, done: float, css: str, title: str) -> None:
    drawing.rect(x(begun), _TOP + _PITCH * row + 10, max(x(done) - x(begun), 1.0), _BAR, css, title)


def _ms(seconds: float) -> str:
    return fmt.milliseconds(1e3 * seconds)


def _description(step: Json) -> str:
    done, last = _ms(step["communication_done_s"]), _ms(step["gradients_s"])
    return f"The last gradient is there after {last}, the last bucket is reduced after {done}"
