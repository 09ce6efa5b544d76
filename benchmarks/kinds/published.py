# SPDX-License-Identifier: Apache-2.0
"""Published architectures in steady state, measured as in `steady`, with the candidates that agspeed lost and why."""

from typing import Any

from benchmarks.kinds import steady

plan = steady.plan
summarize = steady.summarize


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """The case is named after its architecture."""
    return steady.measure(spec | {"case": spec["case"] | {"workload": spec["case"]["name"]}})
