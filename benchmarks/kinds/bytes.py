# SPDX-License-Identifier: Apache-2.0
"""The bytes and the seconds that the exchange of gradients takes, dense, coded losslessly and with lossy codecs.

The workloads are gradient sets of published models, without compute, and trainings, with their compute. A case has
several `networks`, which are rates of a host's rails. Each network has a process of its own. All of them exchange the
same gradients.
"""

from typing import Any

from benchmarks.comm.sides import CONTROL
from benchmarks.kinds import comm

CONTROL_RANGE = (0.95, 1.05)
"""Wider than that of `comm`, because ranks that train share cores. A code that pays changes more than that."""


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"rates": rates} for rates in case["networks"]]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    case = spec["case"] | {"rates": spec["rates"], "part": "step", "folder": f"{spec['cache_dir']}/gradients"}
    return comm.measure_part(spec | {"case": case}, "benchmarks.exchange")


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell is void if a second agspeed, the control, differs from the first."""
    rows = [row for result in results for row in result["exchanges"]]
    networks = [{key: value for key, value in result.items() if key != "exchanges"} for result in results]
    cell = {"networks": networks, "exchanges": rows}
    for row in rows:
        read = row["speed"]["value"]
        if row["way"] == CONTROL and not CONTROL_RANGE[0] <= read <= CONTROL_RANGE[1]:
            reason = f"agspeed against agspeed read {read:.3f} ({row['workload']}, {row['rates']})"
            return cell | {"status": "void", "reason": reason}
    return cell | {"status": "ok"}
