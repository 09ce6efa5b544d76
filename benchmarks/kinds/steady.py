# SPDX-License-Identifier: Apache-2.0
"""Steady state: training steps of all candidates, of eager and of a control in one rotation of one process."""

import traceback
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import workloads
from benchmarks.measure import candidates, memory
from benchmarks.measure.machine import Watch
from benchmarks.measure.pairing import Limits, compare_all
from benchmarks.measure.statistics import median_estimate
from benchmarks.workloads.base import Training, Workload

CONTROL = "control"
CONTROL_RANGE = (0.98, 1.02)


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """One process measures everything, so that all ratios have the same conditions."""
    return [{"candidates": case.get("candidates", settings["candidates"])}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Settles all candidates first, then times them with eager and the control in one rotation."""
    workload, limits = workloads.load(spec["case"]["workload"]), Limits(**spec["settings"]["limits"])
    reference, watch = warm_eager(workload), Watch(spec["cores"])
    sessions, rows = {CONTROL: warm_eager(workload)}, {}
    with ExitStack() as stack:
        stack.callback(torch._dynamo.reset)  # last, because the sessions share Dynamo's caches
        for name in spec["candidates"]:
            if name != "eager":
                training, rows[name] = _settled(candidates.find(name), spec, rows, stack)
                if training is not None:
                    sessions[name] = training
        compared = compare_all(reference, sessions, limits)
        for name, row in rows.items():
            if name in sessions:
                row |= compared[name].to_dict() | {"memory": memory.peak_bytes(sessions[name])}
    if "agspeed" in sessions:
        rows["agspeed"]["over"] = {
            name: compared["agspeed"].speedup_over(compared[name]).to_dict()
            for name in candidates.ORACLE + candidates.LEVELLED
            if name in sessions
        }
    for row in rows.values():
        row.pop("code", None)
    return {
        "eager_ms": median_estimate(compared[CONTROL].reference).value * 1e3,
        "eager_memory": memory.peak_bytes(reference),
        "control": compared[CONTROL].to_dict(),
        "candidates": rows,
        "environment": watch.read(),
    }


def warm_eager(workload: Workload) -> Training:
    """A new session that has run a few steps."""
    training = workload.build()
    candidates.settle(candidates.find("eager"), training, seconds=600)
    return training


def _settled(
    candidate: candidates.Candidate, spec: dict[str, Any], rows: dict[str, Any], stack: ExitStack
) -> tuple[Training | None, dict[str, Any]]:
    """Returns the candidate's session and the facts of its row. It stays in its steady state until `stack` is closed.

    Returns no session if the candidate failed or generated the same code as an earlier row. Any exception that it
    raises becomes its result.
    """
    training, folder = workloads.load(spec["case"]["workload"]).build(), Path(spec["cache_dir"])
    try:
        limit = spec["settings"]["settle_seconds"]
        settled = stack.enter_context(candidates.running(candidate, training, folder, limit))
    except Exception as error:
        return None, {"status": "failed", "reason": describe(error), "trace": traceback.format_exc(limit=-4)}
    facts = {"settle_seconds": settled.seconds, "settle_steps": settled.steps, "chosen": settled.chosen}
    if settled.lost:
        facts["lost"] = settled.lost
    if settled.code and not candidate.tunes:
        for name, row in rows.items():
            is_levelled = candidates.find(name).fuses_optimizers
            if row.get("code") == settled.code and is_levelled == candidate.fuses_optimizers:
                return None, {"status": "same-code", "as": name, **facts}
    training = replace(training, memory=candidate.memory)
    return training, {"status": "timed", **facts, "code": settled.code}


def describe(error: Exception) -> str:
    """Type and beginning of a message, which is cut because compilers append whole programs."""
    return f"{type(error).__name__}: {error}"[:500]


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Adds the oracle (best of eager and Inductor in this process) and agspeed's distance from it.

    If candidates on agspeed's allocator with fused optimizers were timed, adds the distance from the best of these.
    """
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
        over = cell["candidates"]["agspeed"].get("over", {})
        cell["agspeed_to_oracle"] = over[best]["value"] if best in over else speedups["agspeed"] / fixed[best]
        levelled = {name: over[name]["value"] for name in candidates.LEVELLED if name in over}
        if levelled:
            cell["agspeed_to_levelled"] = min(levelled.values())
    return cell
