# SPDX-License-Identifier: Apache-2.0
"""Tables of the cells of kind "bytes": pure functions from their JSON to Markdown."""

from collections.abc import Sequence
from typing import Any

from benchmarks import markdown
from benchmarks.comm.sides import CONTROL
from benchmarks.comm.tables import networks, remarks

Cell = dict[str, Any]
_LEGEND = (
    "MB: on the interfaces of a host in a step, headers included; mean of the hosts (the most of any). All gradients: "
    "scaled by bytes, if a sample is exchanged. Speed: the baseline's time / the way's, paired; median and its 95 % "
    "interval. The control's baseline is agspeed. Error: of the first step's gradients, relative to their norm; topk "
    "sends the rest in later steps. What codecs do to the loss of smaller models like char_gpt and conv_net: `losses`."
)


def render(cells: Sequence[Cell]) -> str:
    each = [{"case": cell["case"], **network} for cell in cells for network in cell["networks"]]
    sections = [networks(each), _exchanges(cells), _LEGEND, remarks(each)]
    return "\n\n".join(section for section in sections if section)


def _exchanges(cells: Sequence[Cell]) -> str:
    rows = [
        [
            row["workload"],
            _amount(row),
            row["rates"],
            _way(row),
            _megabytes(row["sent_mb"]),
            _megabytes(row["received_mb"]),
            f"{row['fewer_bytes']:.2f}",
            f"{row['seconds']['value']:.3g}",
            f"{row['scaled_sent_mb']:.4g}, {row['scaled_seconds']:.3g}",
            markdown.interval(row["speed"], "{:.2f}".format),
            f"{row['error']:.2g}",
        ]
        for cell in cells
        for row in cell["exchanges"]
    ]
    columns = ["gradients", "exchanged", "rails of a host", "way", "MB sent", "MB received", "baseline's bytes / its"]
    return markdown.table(
        [*columns, "s of a step", "all gradients: MB sent, s", "speed over the baseline", "error"], rows
    )


def _amount(row: Cell) -> str:
    is_sample = row["exchanged_mb"] < 0.999 * row["mb"]
    return f"{row['exchanged_mb']:.3g} of {row['mb']:.4g} MB" if is_sample else f"all {row['mb']:.3g} MB"


def _way(row: Cell) -> str:
    buckets = f", buckets of {row['bucket_mb']:g} MB" if row["bucket_mb"] else ""
    role = " (baseline)" if row["over"] == row["way"] else f", of {row['over']}" if row["way"] == CONTROL else ""
    return row["way"] + role + buckets


def _megabytes(found: Cell) -> str:
    return f"{found['mean']:.3g} ({found['most']:.3g})"
