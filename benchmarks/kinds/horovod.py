# SPDX-License-Identifier: Apache-2.0
"""agspeed.horovod in a network of namespaces: named operations, and steps of DistributedOptimizer beside DDP's.

A case names its network, its sides and one part: "memory", "negotiation" or "step" (modules of benchmarks/horovod).
"""

from typing import Any

from benchmarks.comm.sides import CONTROL
from benchmarks.kinds import comm

PARTS = ("memory", "negotiation", "step")
plan = comm.plan
CONTROL_RANGE = (0.97, 1.03)


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    return comm.measure_part(spec, "benchmarks.horovod")


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell is void if a second agspeed, the control, differs from the first."""
    [cell] = results
    for row in [*cell.get("negotiations", []), *cell.get("optimizer_steps", [])]:
        read = row["ratio"]["value"]
        if row["side"] == CONTROL and not CONTROL_RANGE[0] <= read <= CONTROL_RANGE[1]:
            return cell | {"status": "void", "reason": f"agspeed against agspeed read {read:.3f}"}
    return cell | {"status": "ok"}
