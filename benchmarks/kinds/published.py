# SPDX-License-Identifier: Apache-2.0
"""Published architectures in steady state, measured as in `steady`, with the candidates that failed and the reasons."""

from typing import Any

from benchmarks.kinds import steady

plan = steady.plan
summarize = steady.summarize


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Measures the architecture that the case is named after."""
    return steady.measure(spec | {"case": spec["case"] | {"workload": spec["case"]["name"]}})
