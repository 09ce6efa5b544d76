# SPDX-License-Identifier: Apache-2.0
"""Steady state: training steps of each candidate paired with eager's in one process, after a control."""

import traceback
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.measure import candidates, memory
from benchmarks.measure.machine import Watch
from benchmarks.measure.pairing import Limits, compare
from benchmarks.measure.statistics import median_estimate
from benchmarks.workloads.base import Training, Workload

CONTROL_RANGE = (0.98, 1.02)


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """One process measures everything, so that all ratios share their conditions."""
    return [{"candidates": case.get("candidates", settings["candidates"])}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    workload, limits = workloads.load(spec["case"]["workload"]), Limits(**spec["settings"]["limits"])
    reference, twin, watch = warm_eager(workload), warm_eager(workload), Watch(spec["cores"])
    control = compare(reference, twin, limits)
    del twin
    codes: dict[frozenset[str], str] = {}
    rows = {
        name: _candidate(candidates.find(name), spec, reference, limits, codes)
        for name in spec["candidates"]
        if name != "eager"
    }
    return {
        "eager_ms": median_estimate(control.reference).value * 1e3,
        "eager_memory": memory.peak_bytes(reference),
        "control": control.to_dict(),
        "candidates": rows,
        "environment": watch.read(),
    }


def warm_eager(workload: Workload) -> Training:
    """A new session that has run a few steps."""
    training = workload.build()
    candidates.settle(candidates.find("eager"), training, seconds=600)
    return training


def _candidate(
    candidate: candidates.Candidate,
    spec: dict[str, Any],
    reference: Training,
    limits: Limits,
    codes: dict[frozenset[str], str],
) -> dict[str, Any]:
    """Times one candidate, unless it generated code that was timed already. Whatever it raises is its result."""
    training, folder = workloads.load(spec["case"]["workload"]).build(), Path(spec["cache_dir"])
    try:
        with candidates.running(candidate, training, folder, spec["settings"]["settle_seconds"]) as settled:
            facts = {"settle_seconds": settled.seconds, "settle_steps": settled.steps, "chosen": settled.chosen}
            if settled.code and not candidate.tunes:
                if settled.code in codes:
                    return {"status": "same-code", "as": codes[settled.code], **facts}
                codes[settled.code] = candidate.name
            compared = compare(reference, training, limits).to_dict()
            return {"status": "timed", **facts, **compared, "memory": memory.peak_bytes(training)}
    except Exception as error:
        return {"status": "failed", "reason": describe(error), "trace": traceback.format_exc(limit=-4)}


def describe(error: Exception) -> str:
    """Type and first lines of a message: compilers append whole programs."""
    return f"{type(error).__name__}: {error}"[:500]


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Adds the oracle (best of eager and Inductor in this process) and agspeed's distance from it."""
    cell = dict(results[0])
    control = cell["control"]["speedup"]["value"]
    cell["status"] = "ok"
    if not CONTROL_RANGE[0] <= control <= CONTROL_RANGE[1]:
        cell |= {"status": "void", "reason": f"eager against eager read {control:.3f}"}
    speedups = {"eager": 1.0} | {
        name: row["speedup"]["value"] for name, row in cell["candidates"].items() if row["status"] == "timed"
    }
    fixed = {name: speedups[name] for name in candidates.ORACLE if name in speedups}
    best = max(fixed, key=lambda name: fixed[name])
    cell["oracle"] = {"winner": best, "speedup": fixed[best]}
    cell["winner"] = max(speedups, key=lambda name: speedups[name])
    if "agspeed" in speedups:
        cell["agspeed_to_oracle"] = speedups["agspeed"] / fixed[best]
    return cell
