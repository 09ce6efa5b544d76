# SPDX-License-Identifier: Apache-2.0
"""Warm start: seconds from `optimize` to the end of tuning in a second process, over the same in a first, cold one."""

import time
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.measure import candidates
from benchmarks.measure.machine import Watch


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Two processes that share a cache folder, which is empty at first."""
    return [{"candidate": "agspeed", "cache": "fresh"}, {"candidate": "agspeed"}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    import agspeed  # noqa: F401 - imported before the clock starts, as a training script would

    training = workloads.load(spec["case"]["workload"]).build()
    candidate, watch, started = candidates.find(spec["candidate"]), Watch(spec["cores"]), time.perf_counter()
    candidates.prepare(candidate, training, Path(spec["cache_dir"]))
    settled = candidates.settle(candidate, training, spec["settings"]["settle_seconds"], min_steps=1)
    return {
        "seconds": time.perf_counter() - started,
        "steps": settled.steps,
        "chosen": settled.chosen,
        "environment": watch.read(),
    }


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    cold, warm = results
    return {"status": "ok", "cold": cold, "warm": warm, "ratio": warm["seconds"] / cold["seconds"]}
