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
    workload = workloads.load(spec["case"]["workload"])
    limits = Limits(**spec["settings"]["limits"])
    reference = _settled(workload, "eager", spec)[0]
    watch = Watch(spec["cores"])
    control = compare(reference, _settled(workload, "eager", spec)[0], limits)
    result: dict[str, Any] = {
        "eager_ms": median_estimate(control.reference).value * 1e3,
        "eager_memory": memory.peak_bytes(reference),
        "control": control.to_dict(),
        "candidates": {},
    }
    codes: dict[frozenset[str], str] = {}
    for name in spec["candidates"]:
        if name != "eager":
            result["candidates"][name] = _candidate(workload, name, spec, reference, limits, codes)
    return result | {"environment": watch.read()}


def _settled(workload: Workload, name: str, spec: dict[str, Any]) -> tuple[Training, candidates.Settled]:
    training, candidate = workload.build(), candidates.find(name)
    candidates.prepare(candidate, training, Path(spec["cache_dir"]))
    return training, candidates.settle(candidate, training, spec["settings"]["settle_seconds"])


def _candidate(
    workload: Workload,
    name: str,
    spec: dict[str, Any],
    reference: Training,
    limits: Limits,
    codes: dict[frozenset[str], str],
) -> dict[str, Any]:
    """Times one candidate. Whatever one raises is its result, not the end of the cell."""
    try:
        training, settled = _settled(workload, name, spec)
        facts = {"settle_seconds": settled.seconds, "settle_steps": settled.steps, "chosen": settled.chosen}
        if settled.code and settled.code in codes:
            return {"status": "same-code", "as": codes[settled.code], **facts}
        codes.setdefault(settled.code, name)
        compared = compare(reference, training, limits).to_dict()
        return {"status": "timed", **facts, **compared, "memory": memory.peak_bytes(training)}
    except Exception as error:
        return {
            "status": "failed",
            "reason": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc(limit=-4),
        }


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
