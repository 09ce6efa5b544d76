# SPDX-License-Identifier: Apache-2.0
"""Tables of the cells of kind "comm": pure functions from their JSON to Markdown."""

from collections.abc import Sequence
from typing import Any

from benchmarks import markdown
from benchmarks.comm import sizes
from benchmarks.comm.sides import CONTROL, OURS

Cell = dict[str, Any]
_LEGEND = (
    "Share: of the least time the network allows. Ratios: time of the other side / time of agspeed, paired. "
    "All: median and its 95 % interval. CPU: milliseconds per operation and rank (seconds per GB sent, of all ranks)."
)


def render(cells: Sequence[Cell]) -> str:
    sections = [
        networks(cells),
        _all_reduce(cells),
        _coded(cells),
        _steps(cells),
        _joins(cells),
        _layouts(cells),
        _reals(cells),
        _changes(cells),
        remarks(cells),
    ]
    return "\n\n".join(section for section in sections if section)


def networks(cells: Sequence[Cell]) -> str:
    rows = []
    for cell in cells:
        usual, others = cell["rates"][0], {",".join(rates) for rates in cell["rates"]}
        rails = ", ".join(usual) if len(others) == 1 else "; ".join(sorted(others))
        stream, share = cell["stream"], cell["stream"].get("share")
        total = f"{sum(stream['bits_per_second']) / 1e9:.2f} Gbit/s" if stream["bits_per_second"] else "-"
        carried = total if share is None else f"{total}, {share:.3f}"
        processor = f"{stream['cpu_seconds_per_gb']:.2f} s" if "cpu_seconds_per_gb" in stream else "-"
        rows.append([cell["case"], f"{cell['hosts']}, {cell['ranks']}", rails, carried, processor])
    columns = ["case", "hosts, ranks", "rails of a host", "raw stream, share of the ceiling", "its CPU per GB"]
    return markdown.table(columns, rows)


def _all_reduce(cells: Sequence[Cell]) -> str:
    found = [(cell, size) for cell in cells for size in cell.get("sizes", [])]
    names = list(dict.fromkeys(name for _, size in found for name in size["sides"] if name != OURS))
    columns = ["case", "all-reduce of", "ms", "share", "CPU ms", *(f"{name} / agspeed" for name in names), "CPU ms of"]
    rows = [
        [
            cell["case"],
            sizes.show(size["bytes"]),
            f"{size['sides'][OURS]['ms']['value']:.3g}",
            markdown.interval(size["sides"][OURS]["share"]) if "share" in size["sides"][OURS] else "-",
            _cost(size["sides"][OURS]),
            *(_against(size["sides"].get(name)) for name in names),
            _processor(size),
        ]
        if size["status"] == "ok"
        else [cell["case"], sizes.show(size["bytes"]), f"**void**: {size['reason']}", *[""] * (len(columns) - 3)]
        for cell, size in found
    ]
    table = markdown.table(columns, rows)
    return f"{table}\n\n{_LEGEND}" if table else ""


def _coded(cells: Sequence[Cell]) -> str:
    found = [(cell, size) for cell in cells for size in cell.get("coded", [])]
    rows = [
        [
            cell["case"],
            f"{sizes.show(size['bytes'])} {size['values']}, {size['dtype']}",
            f"{size['sides'][OURS]['ms']['value']:.3g}",
            *(
                (f"{code['values_per_code']:.3f}" if code["values_per_code"] else "not coded", _speed(code["ratio"]))
                if size["status"] == "ok"
                else (f"**void**: {size['reason']}", "")
            ),
        ]
        for cell, size in found
        for code in [size["sides"]["agspeed-coded"]]
    ]
    columns = ["case", "all-reduce of", "ms without codes", "bytes of values / bytes of codes", "speed by codes"]
    return markdown.table(columns, rows)


def _speed(ratio: Cell) -> str:
    """Turns a ratio of times around."""
    return f"{1 / ratio['value']:.3f} ({1 / ratio['high']:.3f} to {1 / ratio['low']:.3f})"


def _against(row: Cell | None) -> str:
    if row is None:
        return ""
    share = f", share {row['share']['value']:.3f}" if "share" in row else ""
    return f"{markdown.interval(row['ratio'])}{share}"


def _processor(size: Cell) -> str:
    """The processor time of an operation on the other sides."""
    others = [f"{name} {_cost(row)}" for name, row in size["sides"].items() if name not in (OURS, CONTROL)]
    return ", ".join(others)


def _cost(row: Cell) -> str:
    per_gb = f" ({row['cpu_seconds_per_gb']:.2f})" if "cpu_seconds_per_gb" in row else ""  # older files lack it
    return f"{row['cpu_ms']:.3g}{per_gb}"


def _steps(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell["case"],
            f"{row['bucket_mb']} MB" if row["bucket_mb"] else "default",
            f"{row['compute_seconds']} s",
            row["side"],
            f"{row['seconds']['value']:.3f} s",
            markdown.interval(row["over_submitted"]) if "over_submitted" in row else "-",
            markdown.interval(row["over_bucketed"]),
            markdown.interval(row["over_fluid"]),
            f"{row['cpu_seconds']:.2f} s",
        ]
        for cell in cells
        for row in cell.get("steps", [])
    ]
    columns = ["case", "buckets", "compute", "side", "step", "step / bound of buckets as handed over"]
    return markdown.table([*columns, "of buckets", "of gradients (fluid)", "CPU of a rank"], rows)


def _joins(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell["case"],
            f"{row['communication_per_backward']:g}",
            row["side"],
            row["way"],
            str(row["stages"] or "-"),
            f"{row['seconds']['value']:.3f} s",
            markdown.interval(row["over_eager"]),
            markdown.interval(row["overlap"]),
            f"{row['overlap_limit']:.2f}",
            markdown.interval(row["over_fluid"]),
        ]
        for cell in cells
        for row in cell.get("joins", [])
    ]
    columns = ["case", "communication / backward", "side", "way", "stages", "step", "step / eager's", "overlap"]
    return markdown.table([*columns, "its limit", "step / fluid bound"], rows)


def _layouts(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell["case"],
            f"{row['communication_per_backward']:g}",
            row["side"],
            f"{row['chosen']}, {row['num_steps']} steps, {row['num_pairs']} pairs",
            f"{row['seconds']['value']:.3f} s",
            f"{markdown.interval(row['over_best_cap'])} ({row['best_cap']})",
            markdown.interval(row["over_default"]),
            ", ".join(f"{way} {seconds:.3f}" for way, seconds in row["cap_seconds"].items()),
        ]
        for cell in cells
        for row in cell.get("layouts", [])
    ]
    columns = ["case", "communication / backward", "side", "chosen after", "step", "it / the best cap's"]
    return markdown.table([*columns, "it / default's", "s of each cap"], rows)


def _reals(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell["case"],
            row["workload"],
            row["side"],
            row["way"] if row["chosen"] is None else f"{row['way']}: {row['chosen']}",
            f"{row['seconds']['value']:.3f} s",
            markdown.interval(row["over_eager"]),
            f"{markdown.interval(row['over_best_other'])} ({row['best_other']})",
            f"{row['cpu_seconds']:.3f} s",
        ]
        for cell in cells
        for row in cell.get("reals", [])
    ]
    columns = ["case", "workload", "side", "way", "step", "eager's / it", "the best other's / it", "CPU of a rank"]
    return markdown.table(columns, rows)


def _changes(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell["case"],
            sizes.show(row["bytes"]),
            f"{', '.join(row['from'])} → {', '.join(row['to'])}",
            row["side"],
            markdown.interval(row["before"]),
            " ".join(f"{share:.2f}" for share in row["after"]),
            markdown.interval(row["settled"]),
        ]
        for cell in cells
        for row in cell.get("changes", [])
    ]
    columns = [
        "case",
        "all-reduce of",
        "rates",
        "side",
        "share before",
        "shares after, one by one",
        "from the sixth on",
    ]
    return markdown.table(columns, rows)


def remarks(cells: Sequence[Cell]) -> str:
    """Names the sides that had to be left out."""
    lines = []
    for cell in cells:
        for name, reason in cell["failed"].items():
            lines.append(f"- {cell['case']}, {name}: **failed**, {reason.splitlines()[-1]}")
    return "\n".join(lines)
