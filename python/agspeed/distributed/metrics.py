# SPDX-License-Identifier: Apache-2.0
"""Statistics of a process's transport: counters, Prometheus text, and the record of the last operations.

All values count for the whole process, over all groups that share the transport of the given group. Thread-safe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from agspeed.distributed import groups

__all__ = ["counters", "flight_record", "prometheus", "to_prometheus"]


_more: list[Callable[[], Iterator[str]]] = []


def counters(group: Any = None) -> dict[str, Any]:
    """Counters of the rails, of shared memory, of resent frames, and of operations by name.

    The counters of a rail are bytes, frames, its share of the bytes sent, failovers and stalls. `bytes_per_second` is
    its recent peak rate, or 0 if that is not known.

    Raises: UserError if the group has another backend.
    """
    found: dict[str, Any] = json.loads(groups.require(group).counters())
    total = sum(rail["bytes_sent"] for rail in found["rails"])
    for rail in found["rails"]:
        rail["share"] = rail["bytes_sent"] / total if total else 0.0
    return found


def flight_record(group: Any = None) -> dict[str, Any]:
    """The last operations of each group: their arguments, their outcome and their duration.

    When an operation fails, the same document is written as flight-record-rank<R>.json to the folder
    AGSPEED_FLIGHT_RECORD_DIR. Raises: UserError if the group has another backend.
    """
    found: dict[str, Any] = json.loads(groups.require(group).flight_record())
    return found


def prometheus(group: Any = None) -> str:
    """The result of `counters` and the stragglers as text for a Prometheus scraper or the textfile collector."""
    return to_prometheus(counters(group)) + "".join(f"{line}\n" for more in _more for line in more())


def also_in_prometheus(lines: Callable[[], Iterator[str]]) -> None:
    """Adds lines to the result of `prometheus`. lines: called on the thread that calls `prometheus`."""
    if lines not in _more:
        _more.append(lines)


# Each table maps a metric's name without prefix to (key in a rail, an operation or the document, help text).
_RAILS = {
    "rail_sent_bytes_total": ("bytes_sent", "Payload bytes sent over a rail, also those sent again."),
    "rail_received_bytes_total": ("bytes_received", "Payload bytes received over a rail."),
    "rail_sent_frames_total": ("frames_sent", "Frames sent over a rail."),
    "rail_failovers_total": ("failovers", "Connections of a rail that were lost, their frames handed to other rails."),
    "rail_stalls_total": ("stalls", "Connections given up because the peer's kernel was silent."),
}
_OPERATIONS = {
    "operations_total": ("started", "Operations started."),
    "operations_failed_total": ("failed", "Operations that failed."),
    "operation_bytes_total": ("bytes", "Bytes of the operations' input or output, whichever is more."),
    "operation_seconds_total": ("seconds", "Time from start to end, summed over the operations that have ended."),
}
_PROCESS = {
    "resent_frames_total": ("frames_resent", "Frames sent again."),
    "duplicate_frames_total": ("frames_duplicate", "Frames that had arrived already."),
    "acknowledgement_frames_total": ("acknowledgements_sent", "Frames that carried nothing but an acknowledgement."),
    "shared_memory_sent_bytes_total": ("shared_memory_bytes_sent", "Payload bytes sent through shared memory."),
    "coded_values_bytes_total": ("bytes_before_coding", "Bytes of floats that were sent in fewer bytes."),
    "coded_sent_bytes_total": ("bytes_after_coding", "Bytes that were sent for these floats."),
    "refused_connections_total": ("connections_refused", "Connections of strangers."),
}


def to_prometheus(found: Mapping[str, Any]) -> str:
    """Formats a result of `counters` as Prometheus text."""
    rank = {"rank": str(found["rank"])}
    lines: list[str] = []
    for name, (key, text) in _PROCESS.items():
        lines += _metric(name, text, [(rank, found[key])])
    for name, (key, text) in _RAILS.items():
        rows = (({**rank, "rail": str(index), **_place(rail)}, rail[key]) for index, rail in enumerate(found["rails"]))
        lines += _metric(name, text, rows)
    for name, (key, text) in _OPERATIONS.items():
        rows = (({**rank, "operation": row["operation"]}, row[key]) for row in found["operations"])
        lines += _metric(name, text, rows)
    return "\n".join(lines) + "\n"


def _place(rail: Mapping[str, Any]) -> dict[str, str]:
    return {"interface": rail["interface"], "address": rail["address"]}


def _metric(name: str, text: str, rows: Any) -> Iterator[str]:
    return metric(f"agspeed_comm_{name}", "counter", text, rows)


def metric(full: str, kind: str, text: str, rows: Iterable[tuple[Mapping[str, str], object]]) -> Iterator[str]:
    """Formats a metric. kind: Prometheus's type of it. rows: labels and values."""
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} {kind}"
    for labels, value in rows:
        shown = ",".join(f'{label}="{_escaped(word)}"' for label, word in labels.items())
        yield f"{full}{{{shown}}} {value}"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
