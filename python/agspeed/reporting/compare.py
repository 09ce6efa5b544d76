# SPDX-License-Identifier: Apache-2.0
"""Compares two reports: the differences in the decision, the speed, the cost and the conditions.

Numbers measured under different conditions are shown too, with the list of conditions that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from agspeed.reporting import format as fmt

__all__ = ["Row", "compare", "differing_conditions", "view"]

Json = Mapping[str, Any]


class Row(NamedTuple):
    """One line: a label and the formatted values of both reports."""

    label: str
    before: str
    after: str
    changed: bool


def compare(before: Json, after: Json) -> list[Row]:
    """Returns rows for the decision and its figures, then for the plans of both reports."""
    rows = [_row(label, get(before), get(after)) for label, get in _FIGURES]
    names = dict.fromkeys(plan["name"] for report in (before, after) for plan in report["plans"])
    return rows + [_row(f"plan {fmt.plan(name)}", _plan(before, name), _plan(after, name)) for name in names]


def differing_conditions(before: Json, after: Json) -> list[Row]:
    """Returns rows for conditions that differ (machine, threads, versions, settings). Numbers then compare loosely.

    Omits settings that one of the reports does not have, because they were added in a later version.
    """
    common = before["header"]["settings"].keys() & after["header"]["settings"].keys()
    left, right = _conditions(before, common), _conditions(after, common)
    rows = (
        _row(name, left.get(name, fmt.MISSING), right.get(name, fmt.MISSING)) for name in dict.fromkeys([*left, *right])
    )
    return [row for row in rows if row.changed]


def view(before: Json, after: Json) -> Group:
    """Returns a rich renderable with both lists."""
    before, after = fmt.printable(before), fmt.printable(after)
    return Group(
        _table("Comparison", compare(before, after)),
        Text(),
        _conditions_view(differing_conditions(before, after)),
    )


def _conditions_view(rows: list[Row]) -> Table | Text:
    if not rows:
        return Text("Same machine, threads, versions and settings.", style="dim")
    return _table("Conditions that differ: compare the numbers with care", rows)


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in ("", "Before", "After"):
        table.add_column(column, overflow="fold")
    for row in rows:
        style = "bold" if row.changed else "dim"
        table.add_row(Text(row.label), Text(row.before, style=style), Text(row.after, style=style))
    return table


def _row(label: str, before: str, after: str) -> Row:
    return Row(label, before, after, before != after)


def _speedup(report: Json) -> str:
    speedup = report["decision"]["speedup"]
    return fmt.MISSING if speedup is None else f"{fmt.ratio(speedup['estimate'])} ({fmt.interval(speedup)})"


def _optimizers(report: Json) -> str:
    return ", ".join(str(each["chosen"]) for each in report["optimizers"]) or fmt.MISSING


def _plan(report: Json, name: str) -> str:
    plan = next((plan for plan in report["plans"] if plan["name"] == name), None)
    if plan is None:
        return fmt.MISSING
    time = "" if plan["step_ms"] is None else f", {fmt.step_time(plan)}"
    return f"{fmt.state(plan)}{time}"


_FIGURES: tuple[tuple[str, Callable[[Json], str]], ...] = (
    ("subject", lambda r: str(r["header"]["subject"])),
    ("status", lambda r: str(r["status"]["state"])),
    ("chosen", lambda r: fmt.plan(r["decision"]["chosen"])),
    ("speed against eager", _speedup),
    ("optimizer's step", _optimizers),
    ("tuning, foreground", lambda r: fmt.seconds(r["cost"]["foreground_s"])),
    ("tuning, background", lambda r: fmt.seconds(r["cost"]["background_s"])),
    ("break-even step", lambda r: fmt.count(r["cost"]["break_even_step"])),
    ("peak memory, eager", lambda r: fmt.size(r["memory"]["eager_peak_bytes"])),
    ("peak memory, chosen", lambda r: fmt.size(r["memory"]["chosen_peak_bytes"])),
    ("graph breaks", lambda r: fmt.count(len(r["graph_breaks"]))),
    ("recompiles", lambda r: fmt.count(sum(item["count"] for item in r["recompiles"]))),
    ("fallbacks", lambda r: fmt.count(len(r["fallbacks"]))),
)


def _conditions(report: Json, settings: Collection[str]) -> dict[str, str]:
    header = report["header"]
    found = {f"machine {key}": str(value) for key, value in header["machine"].items()}
    found |= {f"threads {key}": str(value) for key, value in header["threads"].items()}
    found |= {f"version of {key}": value for key, value in header["versions"].items()}
    found |= {f"setting {key}": str(setting["value"]) for key, setting in header["settings"].items() if key in settings}
    return found | {"world size": str(header["world_size"]), "parameters": fmt.count(header["parameters"])}
