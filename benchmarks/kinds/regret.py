# SPDX-License-Identifier: Apache-2.0
"""Regret of mode="auto": real timelines from the first step, each choice in its own cold process.

Eager runs first and last; the two must agree, else the cell is void. Regret at a horizon is agspeed's time over that
of the best fixed choice, twice: `paid` lets the fixed choice pay for its own compile, `free` gives it its steady
step time from step one. Horizons beyond the measured steps are computed from the last steps and labelled so.
"""

import itertools
import time
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.measure import candidates
from benchmarks.measure.machine import Watch
from benchmarks.measure.statistics import median_estimate

MEASURED = (10, 30, 100, 300, 1000)
COMPUTED = (3_000, 10_000, 100_000)
DRIFT = 0.05


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    steps = settings.get("steps") or case.get("steps", 1000)
    return [
        {"candidate": name, "steps": steps, "cache": "fresh"} for name in ("eager", "inductor", "agspeed-auto", "eager")
    ]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    training = workloads.load(spec["case"]["workload"]).build()
    candidate = candidates.find(spec["candidate"])
    watch, ends, started = Watch(spec["cores"]), [], time.perf_counter()
    candidates.prepare(candidate, training, Path(spec["cache_dir"]))
    for index in range(spec["steps"]):
        training.step(training.batches[index % len(training.batches)])
        ends.append(time.perf_counter() - started)
    result = {"candidate": candidate.name, "ends": ends, "environment": watch.read()}
    if candidate.tunes:
        reports = candidates.reports(training)
        result["chosen"] = {name: candidates.decision(report) for name, report in reports.items()}
        result["tuning_seconds"] = sum(report["cost"]["foreground_s"] for report in reports.values())
    return result


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    before, inductor, auto, after = results
    drift = steady_step(after["ends"]) / steady_step(before["ends"])
    fixed = [min(before, after, key=lambda row: row["ends"][-1])["ends"], inductor["ends"]]
    horizons = [horizon_row(horizon, auto["ends"], fixed) for horizon in (*MEASURED, *COMPUTED)]
    cell = {
        "status": "ok",
        "chosen": auto["chosen"],
        "eager_ms": steady_step(before["ends"]) * 1e3,
        "steady_ms": {row["candidate"]: steady_step(row["ends"]) * 1e3 for row in results},
        "tuning_seconds": max(auto["tuning_seconds"], extra_seconds(auto["ends"])),
        "reported_tuning_seconds": auto["tuning_seconds"],
        "horizons": horizons,
        "drift": drift,
        "environment": [row["environment"] for row in results],
    }
    if abs(drift - 1) > DRIFT:
        cell |= {"status": "void", "reason": f"eager's step changed by {drift - 1:+.1%} between the first and last run"}
    return cell


def steady_step(ends: list[float]) -> float:
    """Median seconds of the last fifth of the steps."""
    tail = ends[-max(2, len(ends) // 5) :]
    return median_estimate([later - earlier for earlier, later in itertools.pairwise(tail)]).value


def extra_seconds(ends: list[float]) -> float:
    """Foreground cost as seen from outside: what the timeline took beyond its own steady step time."""
    return max(0.0, ends[-1] - len(ends) * steady_step(ends))


def total_seconds(ends: list[float], horizon: int) -> float:
    """Wall time of `horizon` steps: measured, or continued at the steady step time."""
    missing = horizon - len(ends)
    return ends[horizon - 1] if missing <= 0 else ends[-1] + missing * steady_step(ends)


def horizon_row(horizon: int, auto: list[float], fixed: list[list[float]]) -> dict[str, Any]:
    ours = total_seconds(auto, horizon)
    return {
        "steps": horizon,
        "basis": "measured" if horizon <= len(auto) else "computed",
        "seconds": ours,
        "paid": ours / min(total_seconds(ends, horizon) for ends in fixed),
        "free": ours / min(steady_step(ends) * horizon for ends in fixed),
    }
