# SPDX-License-Identifier: Apache-2.0
"""Collectives of torch.distributed in a network of namespaces: agspeed beside Gloo's best settings, paired.

A case names its network, its sides and one part, a module of benchmarks/comm (see PARTS). The `threads` of a cell are
the cores that all ranks and the kernel's network stack share.
"""

import ctypes
import importlib
import signal
from typing import Any

from benchmarks.comm import sizes
from benchmarks.measure.machine import Watch

PARTS = ("all_reduce", "coded", "join", "layout", "rail_change", "real", "step")
_STREAM_SECONDS = 1.5
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """One process owns the network and drives all ranks, so that all sides have the same conditions."""
    return [{}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    return measure_part(spec, "benchmarks.comm")


def measure_part(spec: dict[str, Any], folder: str) -> dict[str, Any]:
    """Runs the part of the case, a module of that folder. Returns its findings and a description of the network."""
    from benchmarks.comm import contest, network
    from benchmarks.comm.sides import OURS

    case, settings = spec["case"], spec["settings"]
    part = importlib.import_module(f"{folder}.{case['part']}")
    chosen = settings["sizes"] or [sizes.parse(size) for size in case.get("sizes", [])]
    names = list(dict.fromkeys([OURS, *settings["sides"]])) if settings["sides"] else case["sides"]
    ranks_per_host = case.get("ranks_per_host", 1)
    seconds = case["seconds"] if settings["seconds"] is None else settings["seconds"]
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)  # on SIGTERM the bed ends in order
    watch = Watch(spec["cores"])
    with network.build(case) as bed:
        stream = network.stream(bed, case, _STREAM_SECONDS)
        with contest.opened(bed, names, ranks_per_host) as opened:
            found = part.measure(opened, case, chosen, seconds)
    described = {
        "hosts": case["hosts"],
        "ranks": case["hosts"] * ranks_per_host,
        "rates": network.host_rates(case),
        "stream": stream,
        "failed": opened.failed,
    }
    return described | found | {"environment": watch.read()}


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell is void if all its sizes are."""
    [cell] = results
    sizes = cell.get("sizes", []) + cell.get("coded", [])
    if sizes and all(size["status"] == "void" for size in sizes):
        return cell | {"status": "void", "reason": sizes[0]["reason"]}
    return cell | {"status": "ok"}
