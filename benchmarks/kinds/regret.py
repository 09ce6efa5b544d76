# SPDX-License-Identifier: Apache-2.0
"""Regret of mode="auto": real timelines from the first step, each choice in its own cold process.

The processes take turns of half a second (`measure/turns.py`). Eager runs twice; the cell is void if the two disagree.
Regret at a horizon is agspeed's time over that of the best fixed choice. There are two figures: `paid` charges the
fixed choice for its compile, `free` gives it its steady step time from step one. Horizons beyond the measured steps are
computed from the last steps and labelled so, if tuning had ended by then.
"""

import itertools
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.measure.machine import Watch
from benchmarks.measure.statistics import median_estimate
from benchmarks.measure.turns import Turn, take_turns
from benchmarks.worker import environment

HORIZONS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
DRIFT = 0.05
_CHOICES = ("eager", "inductor", "agspeed-auto", "eager")


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    steps = settings.get("steps") or case.get("steps", 1000)
    return [{"steps": steps, "cache": "fresh"}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    watch = Watch(spec["cores"])
    timelines = [
        spec | {"candidate": name, "cache_dir": f"{spec['cache_dir']}/{index}"} for index, name in enumerate(_CHOICES)
    ]
    return {"timelines": take_turns(timeline, timelines), "environment": watch.read()}


def timeline(spec: dict[str, Any], turn: Turn) -> dict[str, Any]:
    """Runs one choice in a process of its own. Returns the seconds from before `prepare` to the end of each step."""
    os.environ.update(environment(spec))
    import torch

    from benchmarks import workloads
    from benchmarks.measure import candidates

    torch.set_num_threads(spec["threads"])
    training = workloads.load(spec["case"]["workload"]).build()
    candidate, ends = candidates.find(spec["candidate"]), []
    started = time.perf_counter()
    candidates.prepare(candidate, training, Path(spec["cache_dir"]))
    for index in range(spec["steps"]):
        turn.border()
        training.step(training.batches[index % len(training.batches)])
        ends.append(time.perf_counter() - started)
    result = {"candidate": candidate.name, "ends": ends}
    if candidate.tunes:
        reports = candidates.reports(training)
        result["chosen"] = {name: candidates.decision(report) for name, report in reports.items()}
        result["tuning_seconds"] = sum(report["cost"]["foreground_s"] for report in reports.values())
        result["settled"] = all(report["status"]["state"] != "tuning" for report in reports.values())
    return result


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    before, inductor, auto, after = results[0]["timelines"]
    drift = after["ends"][-1] / before["ends"][-1]
    eager = [(one + other) / 2 for one, other in zip(before["ends"], after["ends"], strict=True)]
    reached = [horizon for horizon in HORIZONS if horizon <= len(eager) or auto["settled"]]
    horizons = [horizon_row(horizon, auto["ends"], [eager, inductor["ends"]]) for horizon in reached]
    cell = {
        "status": "ok",
        "chosen": auto["chosen"],
        "settled": auto["settled"],
        "eager_ms": steady_step(eager) * 1e3,
        "steady_ms": {row["candidate"]: steady_step(row["ends"]) * 1e3 for row in (before, inductor, auto)},
        "tuning_seconds": max(auto["tuning_seconds"], extra_seconds(auto["ends"])),
        "reported_tuning_seconds": auto["tuning_seconds"],
        "horizons": horizons,
        "drift": drift,
        "environment": results[0]["environment"],
    }
    if abs(drift - 1) > DRIFT:
        cell |= {"status": "void", "reason": f"eager took {drift - 1:+.1%} longer in one process than in another"}
    return cell


def steady_step(ends: list[float]) -> float:
    """Median seconds of the last fifth of the steps."""
    tail = ends[-max(2, len(ends) // 5) :]
    return median_estimate([later - earlier for earlier, later in itertools.pairwise(tail)]).value


def extra_seconds(ends: list[float]) -> float:
    """Foreground cost as seen from outside: the timeline's time beyond its own steady step time."""
    return max(0.0, ends[-1] - len(ends) * steady_step(ends))


def total_seconds(ends: list[float], horizon: int) -> float:
    """Wall time of `horizon` steps: measured, or extrapolated with the steady step time."""
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
