# SPDX-License-Identifier: Apache-2.0
"""Draws charts of candidates, errors, time, memory and break-even. timeline_chart.py draws the step times.

Each function takes the report and a width and returns the SVG, or None if there is nothing to draw. A chart is drawn
once for wide and once for narrow screens, because scaling one drawing down makes its text too small to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from agspeed.reporting import format as fmt
from agspeed.reporting.html.svg import Drawing, Linear, Logarithmic, shorten, text_width, ticks

__all__ = ["break_even", "candidates", "errors", "memory", "time_shares"]

Json = Mapping[str, Any]

_NARROW = 400
_MAX_ROWS = 14
_MAX_ERROR_ROWS = 20
_LEAST_ERROR = 1e-20  # smaller errors are drawn at the end of the axis


class _Rows(NamedTuple):
    """The geometry of a chart with labelled rows: labels are at the left, or above the row on narrow screens."""

    names: Sequence[str]
    width: float
    right: float

    @property
    def stacked(self) -> bool:
        return self.width < _NARROW

    @property
    def pitch(self) -> float:
        return 42 if self.stacked else 28

    @property
    def left(self) -> float:
        widest = max((text_width(name) for name in self.names), default=0.0)
        return 8 if self.stacked else min(widest + 14, self.width * 0.36)

    @property
    def bottom(self) -> float:
        return 8 + self.pitch * len(self.names)

    def y(self, index: int) -> float:
        """Returns the vertical middle of the row's mark."""
        return 8 + self.pitch * index + (28 if self.stacked else 14)

    def label(self, drawing: Drawing, index: int, css: str = "") -> None:
        room = self.width - 16 if self.stacked else self.left - 10
        drawing.text(2, self.y(index) + (-13 if self.stacked else 4), shorten(self.names[index], room), css)


def candidates(report: Json, width: float, css: str) -> Markup | None:
    """Draws each plan's speed against eager (the line at 1 ×) with its interval. Plans that were not timed show why."""
    plans = _selected(
        [plan for plan in report["plans"] if plan["name"] != "eager" and not fmt.is_folded(plan)], _MAX_ROWS
    )
    measured = [plan["speedup"] for plan in plans if plan["speedup"]]
    if not measured:
        return None
    rows = _Rows([fmt.plan(plan["name"]) for plan in plans], width, right=58)
    drawing = Drawing(width, rows.bottom + 38, "Candidates", _candidates_description(plans), css)
    low, high = min(0.95, *(s["low"] for s in measured)), max(1.05, *(s["high"] for s in measured))
    pad = (high - low) * 0.06
    scale = Linear(low - pad, high + pad, rows.left, width - rows.right)
    _bottom_axis(
        drawing, rows, scale, [_times(tick) for tick in _axis_ticks(scale, width)], "eager's step time ÷ this plan's"
    )
    drawing.line(scale(1.0), 4, scale(1.0), rows.bottom, "reference", "eager")
    for index, plan in enumerate(plans):
        rows.label(drawing, index, "strong" if plan["state"] == "chosen" else "")
        _candidate_mark(drawing, rows, scale, index, plan)
    return drawing.markup()


def _times(ratio: float) -> str:
    return "1× = eager" if ratio == 1 else f"{ratio:g}×"


def _candidates_description(plans: Sequence[Json]) -> str:
    return "eager is 1 ×; " + "; ".join(
        f"{fmt.plan(p['name'])} {fmt.interval(p['speedup']) if p['speedup'] else p['state']}" for p in plans
    )


def _candidate_mark(drawing: Drawing, rows: _Rows, scale: Linear, index: int, plan: Json) -> None:
    y, speedup, state = rows.y(index), plan["speedup"], plan["state"]
    if speedup is None:
        drawing.text(
            rows.left, y + 4, shorten(f"{state}: {plan['reason'] or ''}".rstrip(": "), rows.width - rows.left), "dim"
        )
        return
    css = f"state-{state}"
    measured = f"{fmt.ratio(speedup['estimate'])}, {fmt.interval(speedup)}, {speedup['pairs']} pairs"
    title = f"{fmt.plan(plan['name'])}: {measured}, {state}"
    for end in ("low", "high"):
        drawing.line(scale(speedup[end]), y - 5, scale(speedup[end]), y + 5, f"whisker {css}")
    drawing.line(scale(speedup["low"]), y, scale(speedup["high"]), y, f"whisker {css}")
    drawing.circle(scale(speedup["estimate"]), y, 5, f"mark {css}", title)
    drawing.text(rows.width - 2, y + 4, fmt.ratio(speedup["estimate"]), "strong" if state == "chosen" else "", "end")


def errors(report: Json, width: float, css: str) -> Markup | None:
    """Draws RMS errors against fp64 on a logarithmic axis, with eager's own errors."""
    found = list(_error_rows(report))[:_MAX_ERROR_ROWS]
    if not found:
        return None
    rows = _Rows([name for name, _, _ in found], width, right=66)
    shown = [value for _, group, _ in found for value in (group["rms"], group["eager_rms"], group["allowed_rms"])]
    finite = [value for value in shown if value is not None and _is_positive(value)] or [1e-7]
    low = 10.0 ** math.floor(math.log10(max(min(finite), _LEAST_ERROR)) - 0.2)
    high = 10.0 ** math.ceil(math.log10(max(*finite, _LEAST_ERROR)) + 0.2)
    scale = Logarithmic(low, high, rows.left + 4, width - rows.right - 8)
    description = "; ".join(f"{name} {_error_words(group)}" for name, group, _ in found)
    drawing = Drawing(width, rows.bottom + 38, "Errors against fp64", description, css)
    decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
    stride = max(1, math.ceil(len(decades) * 46 / (width - rows.left - rows.right)))
    for exponent in decades[::stride]:
        _grid_line(drawing, rows, scale(10.0**exponent), f"1e{exponent}")
    drawing.text((rows.left + width - rows.right) / 2, rows.bottom + 34, "RMS error", "dim", "middle")
    for index, (_, group, verdict) in enumerate(found):
        rows.label(drawing, index)
        _error_mark(drawing, rows, scale, index, group, verdict)
    return drawing.markup()


def _error_rows(report: Json) -> Iterator[tuple[str, Json, str]]:
    """Yields (label, errors, verdict) for every gate result with figures; for regions only if no plan has figures."""
    gated = [plan for plan in report["plans"] if plan["gate"] and not fmt.is_folded(plan)]
    named = [(fmt.plan(plan["name"]), plan["gate"]) for plan in _selected(gated, _MAX_ERROR_ROWS // 2)]
    if not named:
        named = [(f"{r['id']} {c['name']}", c["gate"]) for r in report["regions"] for c in r["candidates"]]
    for name, gate in named:
        for kind in ("forward", "gradients", "optimizer"):
            if gate and gate[kind]:
                yield f"{name} {kind}", gate[kind], gate["verdict"]


def _error_mark(drawing: Drawing, rows: _Rows, scale: Logarithmic, index: int, group: Json, verdict: str) -> None:
    y, own, eager = rows.y(index), group["rms"], group["eager_rms"]
    css = "state-wrong" if verdict == "rejected" else "state-chosen"
    x = scale.end if isinstance(own, str) else scale(own)
    if not isinstance(eager, str):
        drawing.line(scale(eager), y, x, y, f"link {css}")
        drawing.line(scale(eager), y - 7, scale(eager), y + 7, "eager-tick")
    allowed = group["allowed_rms"]
    if allowed is not None and not isinstance(allowed, str):
        drawing.line(scale(allowed), y - 7, scale(allowed), y + 7, "limit-tick", f"limit {fmt.error(allowed)}")
    drawing.circle(x, y, 4.5, f"mark {css}", _error_words(group))
    drawing.text(rows.width - 2, y + 4, fmt.error(own), "bad" if verdict == "rejected" else "", "end")


def _error_words(group: Json) -> str:
    limit = "" if group["allowed_rms"] is None else f", allowed {fmt.error(group['allowed_rms'])}"
    return f"{fmt.error(group['rms'])}{limit}, eager {fmt.error(group['eager_rms'])}, worst {group['worst'] or '?'}"


def time_shares(report: Json, width: float, css: str) -> Markup | None:
    """Draws the parts of an average steady step, longest first."""
    shares = sorted(report["time_shares"], key=lambda share: -share["ms"])[:_MAX_ROWS]
    total = sum(share["ms"] for share in report["time_shares"])
    if total <= 0:
        return None
    rows = _Rows([share["name"] for share in shares], width, right=104)
    description = "; ".join(f"{share['name']} {fmt.percent(share['ms'] / total)}" for share in shares)
    drawing = Drawing(width, rows.bottom + 6, "Where time goes", description, css)
    scale = Linear(0, shares[0]["ms"], 0, width - rows.left - rows.right)
    for index, share in enumerate(shares):
        rows.label(drawing, index)
        title = f"{share['name']} ({share['kind']}): {fmt.milliseconds(share['ms'])}"
        drawing.rect(rows.left, rows.y(index) - 8, max(scale(share["ms"]), 1.5), 16, f"kind-{share['kind']}", title)
        figure = f"{fmt.milliseconds(share['ms'])} · {fmt.percent(share['ms'] / total)}"
        drawing.text(width - 2, rows.y(index) + 4, figure, "", "end")
    return drawing.markup()


def memory(report: Json, width: float, css: str) -> Markup | None:
    """Draws the peak live bytes of every plan that ran, and of the gate, with the limit."""
    measured = _selected([p for p in report["plans"] if p["peak_bytes"] and not fmt.is_folded(p)], _MAX_ROWS - 1)
    peaks = [(fmt.plan(plan["name"]), plan["peak_bytes"], plan["state"]) for plan in measured]
    if report["memory"]["gate_peak_bytes"]:
        peaks.append(("numerics gate", report["memory"]["gate_peak_bytes"], "gate"))
    if not peaks:
        return None
    limit = report["memory"]["limit_bytes"]
    rows = _Rows([name for name, _, _ in peaks], width, right=74)
    description = "; ".join(f"{name} {fmt.size(peak)}" for name, peak, _ in peaks)
    drawing = Drawing(width, rows.bottom + 26, "Memory", description, css)
    scale = Linear(0, max([limit or 0, *(peak for _, peak, _ in peaks)]), rows.left, width - rows.right)
    for index, (name, peak, state) in enumerate(peaks):
        rows.label(drawing, index, "strong" if state == "chosen" else "")
        bar = "state-eager" if name == "eager" and state != "chosen" else f"state-{state}"
        drawing.rect(
            rows.left, rows.y(index) - 8, scale(peak) - rows.left, 16, f"bar {bar}", f"{name}: {fmt.size(peak)}"
        )
        drawing.text(width - 2, rows.y(index) + 4, fmt.size(peak), "", "end")
    if limit:
        drawing.line(scale(limit), 2, scale(limit), rows.bottom + 6, "limit")
        drawing.text(
            scale(limit), rows.bottom + 20, f"limit {fmt.size(limit)}", "dim", "end" if width < _NARROW else "middle"
        )
    return drawing.markup()


def break_even(report: Json, width: float, css: str) -> Markup | None:
    """Draws seconds saved minus seconds spent on tuning, by step. Tuning has paid where the line crosses zero."""
    cost, steps = report["cost"], report["timeline"]["steps"]
    saving, spent, crossing = cost["saving_ms_per_step"], cost["foreground_s"], cost["break_even_step"]
    if not saving or saving <= 0 or crossing is None:
        return None
    last = max(steps, math.ceil(crossing * 1.5), 1)
    start = max(crossing - spent * 1000 / saving, 0.0)  # the step at which the plan began to save
    lowest, final = saving * (start - crossing) / 1000, saving * (last - crossing) / 1000
    height, left, right, bottom = 260.0, 52.0, 14.0, 44.0
    description = (
        f"Costs {fmt.seconds(spent)}, saves {fmt.milliseconds(saving)} per step, earned back at step {crossing:,}"
    )
    drawing = Drawing(width, height, "Break-even", description, css)
    x = Linear(0, last, left, width - right)
    y = Linear(lowest * 1.15 - 0.01, max(final * 1.1, 0.01), height - bottom, 10)
    _frame(drawing, x, y, width)
    drawing.polygon([(x(0), y(0)), (x(start), y(lowest)), (x(crossing), y(0))], "area-loss")
    drawing.polygon([(x(crossing), y(0)), (x(last), y(final)), (x(last), y(0))], "area-gain")
    drawing.line(x(0), y(0), x(last), y(0), "reference")
    drawing.polyline([(x(0), y(0)), (x(start), y(lowest)), (x(last), y(final))], "series")
    drawing.circle(x(crossing), y(0), 5, "mark state-chosen", f"break-even at step {crossing:,}")
    at_right = x(crossing) > width * 0.6
    label_x, label_y = x(crossing) + (-8 if at_right else 8), y(0) + (-10 if at_right else 18)
    drawing.text(label_x, label_y, f"step {crossing:,}", "strong", "end" if at_right else "start")
    if steps < last:
        drawing.line(x(steps), 10, x(steps), height - bottom, "now")
        drawing.text(x(steps) + 4, 22, "now", "dim")
    drawing.text((left + width - right) / 2, height - 6, "training step", "dim", "middle")
    return drawing.markup()


def _frame(drawing: Drawing, x: Linear, y: Linear, width: float) -> None:
    for tick in ticks(y.low, y.high, 5):
        drawing.line(x.start, y(tick), x.end, y(tick), "grid")
        drawing.text(x.start - 6, y(tick) + 4, f"{tick:g} s", "tick", "end")
    for tick in ticks(x.low, x.high, 6 if width > _NARROW else 4):
        drawing.text(x(tick), y.start + 18, f"{tick:,.0f}", "tick", "middle")


def _selected(plans: Sequence[Json], most: int) -> list[Json]:
    """Returns at most `most` plans in their order: eager, the chosen plan and the best others (tables list all)."""

    def interest(plan: Json) -> tuple[bool, bool, float]:
        return (
            plan["state"] == "chosen",
            plan["name"] == "eager",
            plan["speedup"]["estimate"] if plan["speedup"] else 0.0,
        )

    kept = sorted(range(len(plans)), key=lambda index: interest(plans[index]), reverse=True)[:most]
    return [plans[index] for index in sorted(kept)]


def _axis_ticks(scale: Linear, width: float) -> list[float]:
    return ticks(scale.low, scale.high, 6 if width > _NARROW else 4)


def _bottom_axis(drawing: Drawing, rows: _Rows, scale: Linear, labels: Sequence[str], title: str) -> None:
    for tick, label in zip(_axis_ticks(scale, rows.width), labels, strict=True):
        _grid_line(drawing, rows, scale(tick), label)
    drawing.text((scale.start + scale.end) / 2, rows.bottom + 34, title, "dim", "middle")


def _grid_line(drawing: Drawing, rows: _Rows, x: float, label: str) -> None:
    drawing.line(x, 4, x, rows.bottom, "grid")
    drawing.text(x, rows.bottom + 16, label, "tick", "middle")


def _is_positive(value: float | str) -> bool:
    return not isinstance(value, str) and value > 0
