# SPDX-License-Identifier: Apache-2.0
"""Prints the report in a terminal: first the answers, then tables. Uses colour only if the console supports it.

`as_text` returns the same view without colour, for `str(report)` and files.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agspeed.reporting import format as fmt
from agspeed.reporting import summary

__all__ = ["STATE_STYLES", "as_text", "print_report"]

Json = Mapping[str, Any]

STATE_STYLES = {
    "chosen": "bold green",
    "slower": "default",
    "wrong": "bold red",
    "memory": "yellow",
    "failed": "red",
    "skipped": "dim",
    "pending": "cyan",
}
_NUMBERS = (
    *("Compile", "Cost", "Count", "Failed", "Failovers", "Mean", "Moved", "Native", "Operators", "Peak", "Per step"),
    *("Received", "Sent", "Share", "Speed", "Stalls", "Step"),
)
_MAX_ROWS = 12
_WIDE = 100


def print_report(report: Json, console: Console | None = None) -> None:
    """Writes the whole report to `console` (standard output by default)."""
    console = console or Console()
    report = fmt.printable(report)
    console.print(_view(report, is_wide=console.width >= _WIDE))
    console.print(_commands(report), soft_wrap=True)  # so that users can copy a whole command


def as_text(report: Json, width: int = 110) -> str:
    """Returns the report as plain text without trailing blanks, in characters that standard output supports."""
    stream = io.StringIO()
    print_report(
        report, Console(file=stream, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    )
    text = "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
    return fmt.encodable(text, getattr(sys.stdout, "encoding", None))


def _view(report: Json, is_wide: bool) -> Group:
    blocks: list[RenderableType] = [_title(report), _answers(report)]
    if report["plans"]:
        blocks.append(_plans(report, is_wide))
    if report["regions"]:
        blocks.append(_regions(report))
    blocks += [table for table in (_breaks(report), _recompiles(report), _fallbacks(report)) if table.row_count]
    if sentence := summary.retained_memory(report["memory"]["retained"]):
        blocks.append(Text(sentence))
    if report["group"]:
        blocks.append(_group(report["group"]))
    if report["stragglers"]:
        blocks += [Text(line) for line in summary.stragglers(report["stragglers"])[:_MAX_ROWS]]
    if report["codec"]:
        blocks.append(Text(summary.codec(report["codec"])))
    if report["units"]:
        blocks.append(Text(summary.units(report["units"])))
    if report["comparison"]:
        blocks.append(Text(summary.comparison(report["comparison"])))
    if report["communication"]:
        tables = (_rails(report["communication"]), _operations(report["communication"]))
        blocks += [table for table in tables if table.row_count]
    blocks += [Text(f"Warning: {message}", style="yellow") for message in report["warnings"][:_MAX_ROWS]]
    framed = [item for block in blocks for item in (block, Text())]
    return Group(*framed, Text(f"Switch off: {report['kill_switch']}", style="dim"))


def _title(report: Json) -> Text:
    header = report["header"]
    machine, threads = header["machine"], header["threads"]
    conditions = [machine["cpu"], machine["isa"], fmt.plural(threads["intra_op"], "thread")]
    conditions += [f"{name} {header['versions'][name]}" for name in ("torch", "agspeed") if name in header["versions"]]
    text = Text.assemble(
        ("agspeed", "bold"), "  ", (header["subject"], "bold cyan"), "  ", (summary.headline(report), "bold green")
    )
    text.append("\n" + " · ".join(part for part in conditions if part), style="dim")
    return text


def _answers(report: Json) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for question, text in summary.answers(report):
        grid.add_row(Text(question), Text(text))
    return grid


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", overflow="fold")
    return table


def _plans(report: Json, is_wide: bool) -> RenderableType:
    """Returns the table of plans. On narrow terminals the reasons follow the table instead of forming a column."""
    columns = ("Plan", "State", "Step", "Speed", "Interval", "Peak")
    table = _table("Plans", *columns, *(["Compile", "Why"] if is_wide else []))
    for column in table.columns[: len(columns)]:
        column.no_wrap = True
    for plan in report["plans"]:
        style = STATE_STYLES[plan["state"]]
        cells: list[str | Text] = [
            Text(plan["name"], style=style),
            Text(fmt.state(plan), style=style),
            fmt.step_time(plan),
            fmt.ratio(plan["speedup"]["estimate"] if plan["speedup"] else None),
            fmt.interval(plan["speedup"]),
            fmt.size(plan["peak_bytes"]),
        ]
        if is_wide:
            compile_time = "cached" if plan["cached"] else fmt.seconds(plan["compile_s"])
            cells += [compile_time, Text(plan["reason"] or "")]
        table.add_row(*cells)
    if is_wide:
        return table
    reasons = (Text(f"{plan['name']}: {plan['reason']}") for plan in report["plans"] if plan["reason"])
    return Group(table, *(Padding(reason, (0, 0, 0, 2)) for reason in reasons))


def _regions(report: Json) -> Table:
    rows = []
    for region in report["regions"]:
        share = region["native_operators"] / region["operators"] if region["operators"] else 0.0
        row = [region["id"], fmt.location(region["location"]), fmt.count(region["operators"]), fmt.percent(share)]
        rows.append([*row, fmt.count(len(region["shapes"])), region["chosen"] or "eager"])
    return _listing("Regions", ("Region", "Where", "Operators", "Native", "Shapes", "Runs"), rows)


def _breaks(report: Json) -> Table:
    rows = [[*_place(item), fmt.milliseconds(item["cost_ms"]), item["reason"]] for item in report["graph_breaks"]]
    return _listing("Graph breaks", ("Where", "Count", "Per step", "Reason"), rows)


def _recompiles(report: Json) -> Table:
    rows = [[*_place(item), fmt.seconds(item["cost_s"]), item["reason"]] for item in report["recompiles"]]
    return _listing("Recompiles", ("Where", "Count", "Cost", "Reason"), rows)


def _fallbacks(report: Json) -> Table:
    rows = [[item["region"] or fmt.MISSING, *_place(item), item["reason"]] for item in report["fallbacks"]]
    return _listing("Fallbacks to eager", ("Region", "Where", "Count", "Reason"), rows)


def _group(group: Json) -> Text:
    return Text(summary.group(group))


def _rails(communication: Json) -> Table:
    rows = [
        [
            f"{rail['interface']} {rail['address']}",
            fmt.size(rail["bytes_sent"]),
            fmt.percent(rail["share"]),
            fmt.size(rail["bytes_received"]),
            fmt.count(rail["failovers"]),
            fmt.count(rail["stalls"]),
        ]
        for rail in communication["rails"]
    ]
    if sent := communication["shared_memory_bytes_sent"]:
        rows.append(["shared memory", fmt.size(sent), *[fmt.MISSING] * 4])
    if before := communication["bytes_before_coding"]:
        saved = before - communication["bytes_after_coding"]
        rows.append(["saved by lossless coding", fmt.size(saved), *[fmt.MISSING] * 4])
    return _listing("Rails", ("Rail", "Sent", "Share", "Received", "Failovers", "Stalls"), rows)


def _operations(communication: Json) -> Table:
    rows = [
        [
            row["operation"],
            fmt.count(row["started"]),
            fmt.size(row["bytes"]),
            fmt.milliseconds(summary.mean_ms(row)),
            fmt.count(row["failed"]),
        ]
        for row in communication["operations"]
    ]
    return _listing("Communication", ("Operation", "Count", "Moved", "Mean", "Failed"), rows)


def _place(item: Json) -> tuple[str, str]:
    """Returns the place of an event and its count."""
    return fmt.location(item["location"]), fmt.count(item["count"])


def _listing(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Returns a table of the first rows, with the number of further rows."""
    table = _table(title, *columns)
    for row in rows[:_MAX_ROWS]:
        table.add_row(*map(Text, row))
    if len(rows) > _MAX_ROWS:
        table.caption = f"and {len(rows) - _MAX_ROWS:,} more; the HTML report lists all"
        table.caption_justify = "left"
    return table


def _commands(report: Json) -> Text:
    """Returns the commands that reproduce the run, one per line."""
    lines = []
    if report["reproduce"]["command"]:
        lines.append(f"Reproduce: {report['reproduce']['command']}")
    if report["reproduce"]["plan"]:
        lines.append(f'Replay without timing: mode="deterministic", plan="{report["reproduce"]["plan"]}"')
    return Text("\n".join(lines))
