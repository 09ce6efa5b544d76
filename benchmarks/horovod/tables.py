# SPDX-License-Identifier: Apache-2.0
"""Tables of the cells of kind "horovod": pure functions from their JSON to Markdown."""

from collections.abc import Sequence
from typing import Any

from benchmarks import markdown
from benchmarks.comm import sizes
from benchmarks.comm.tables import networks, remarks

Cell = dict[str, Any]
_LEGEND = (
    "Ratio: time of the row / time of what stands behind it, paired; efficiency: a step without communication / a "
    "step. All: median and its 95 % interval. CPU: of a rank."
)


def render(cells: Sequence[Cell]) -> str:
    sections = [networks(cells), _negotiations(cells), _steps(cells), _LEGEND, _memories(cells), remarks(cells)]
    return "\n\n".join(section for section in sections if section)


def _negotiations(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell["case"],
            f"{row['tensors']} x {sizes.show(row['bytes'])}",
            f"{row['side']} {row['way']}",
            markdown.interval(row["ms"]),
            _ratio(row, f"{row['side']} {row['way']}"),
            f"{row['cpu_ms']:.2f}",
        ]
        for cell in cells
        for row in cell.get("negotiations", [])
    ]
    return markdown.table(["case", "tensors", "side and way", "ms", "ratio", "CPU ms"], rows)


def _steps(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell["case"],
            f"{row['set']}, {row['bytes'] / 1e6:.0f} MB",
            f"{row['communication_per_compute']:g}",
            row["side"] if row["side"] == "horovod" else f"{row['side']}, {_cap(row)}",
            f"{row['seconds']['value']:.3f} s",
            _ratio(row, row["side"]),
            markdown.interval(row["efficiency"]),
            markdown.interval(row["over_fluid"]),
            f"{row['cpu_seconds']:.2f} s",
        ]
        for cell in cells
        for row in cell.get("optimizer_steps", [])
    ]
    columns = ["case", "gradients", "communication / compute", "side, buckets", "step", "ratio", "efficiency"]
    return markdown.table([*columns, "step / fluid bound", "CPU"], rows)


def _memories(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell["case"],
            f"{row['steps']:,}",
            " ".join(f"{each:.1f}" for each in row["resident_mib"]),
            f"{row['growth']:+.2%}",
            f"{row['fusion_buffers']}, {row['fusion_buffer_bytes'] / (1 << 20):.2f} MiB, at most "
            f"{row['max_fusion_buffer_bytes'] / (1 << 20):.2f}",
        ]
        for cell in cells
        for row in cell.get("memories", [])
    ]
    return markdown.table(
        ["case", "steps", "resident MiB, one reading after another", "growth", "fusion buffers"], rows
    )


def _ratio(row: Cell, own: str) -> str:
    return "1" if row["over"] == own else f"{markdown.interval(row['ratio'])} of {row['over']}"


def _cap(row: Cell) -> str:
    return f"{row['bucket_mb']:g} MB" if row["bucket_mb"] else "default"
