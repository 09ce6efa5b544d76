# SPDX-License-Identifier: Apache-2.0
"""Time to speed: seconds from the first step until 20 steps in a row run at 0.97 of the final speed or better.

Each way starts cold, in a process of its own with empty caches: `torch.compile`, and agspeed in the modes `max` and
`auto`. Its final speed is the median of its last steps, after tuning. The 20 steps are timed from the end of the step
before them to the end of the last one. So a pause between two of them counts, and one of them may be slow. The result
is the time at which they began. The standstill is the longest time between the ends of two steps. A final speed may
exceed that of `torch.compile`, so a second figure says when `torch.compile`'s speed was reached.

A step may take several batches of its workload at once (`batches` of the case), because cold starts matter where steps
are long.
"""

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import workloads
from benchmarks.measure import candidates
from benchmarks.measure.machine import Watch
from benchmarks.workloads.base import Training

WAYS = ("inductor", "agspeed", "agspeed-auto")
IN_A_ROW = 20
SHARE = 0.97
_FINAL_STEPS = 100


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"candidate": name, "cache": "fresh"} for name in WAYS]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    import agspeed  # noqa: F401 - imported before the clock starts, as a training script would

    case, limit = spec["case"], spec["settings"]["settle_seconds"]
    training = enlarged(workloads.load(case["workload"]).build(), case.get("batches", 1))
    candidate, watch = candidates.find(spec["candidate"]), Watch(spec["cores"])
    candidates.prepare(candidate, training, Path(spec["cache_dir"]))
    started, ends, final = time.perf_counter(), [0.0], 0
    while final < _FINAL_STEPS and ends[-1] <= limit:
        training.step(training.batches[(len(ends) - 1) % len(training.batches)])
        ends.append(time.perf_counter() - started)
        final = 0 if candidates.is_tuning(candidate, training) else final + 1
    reached = milestones(ends, len(ends) - (final or min(_FINAL_STEPS, len(ends) - 1)))
    result = {"candidate": candidate.name, **reached, "ends": ends, "environment": watch.read()}
    if final < _FINAL_STEPS:  # still tuning
        result["seconds"] = None
    if candidate.tunes:
        reports = candidates.reports(training)
        result["chosen"] = {name: candidates.decision(report) for name, report in reports.items()}
    return result


def enlarged(training: Training, count: int) -> Training:
    """Returns the same session with `count` batches joined to one. Requires: batches are flat tuples of tensors."""
    groups = zip(*[iter(training.batches)] * count, strict=False)
    batches = [tuple(torch.cat(parts) for parts in zip(*group, strict=True)) for group in groups]
    return Training(training.modules, training.step, batches, training.period, training.optimizers)


def milestones(ends: list[float], settled: int) -> dict[str, Any]:
    """Returns the figures of a timeline of step ends. Its first entry is the start.

    Args:
        settled: index of the first end that counts for the final speed.
    """
    seconds = [later - earlier for earlier, later in itertools.pairwise(ends)]
    step = statistics.median(seconds[settled - 1 :])
    return {
        "seconds": seconds_until(ends, step),
        "settled_seconds": ends[settled - 1],
        "standstill_seconds": max(seconds),
        "step_ms": step * 1e3,
        "steps": len(seconds),
    }


def seconds_until(ends: list[float], step: float) -> float | None:
    """When the first 20 steps in a row began that took at most 20 `step` / 0.97; None if there were none."""
    limit = IN_A_ROW * step / SHARE
    return next((ends[at] for at in range(len(ends) - IN_A_ROW) if ends[at + IN_A_ROW] - ends[at] <= limit), None)


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    inductor, best, auto = results
    for way in results:
        way["inductors_speed_seconds"] = seconds_until(way.pop("ends"), inductor["step_ms"] / 1e3)
    cell = {"status": "ok", "ways": results}
    if any(row["seconds"] is None for row in (inductor, best)):
        slow = ", ".join(row["candidate"] for row in (inductor, best) if row["seconds"] is None)
        return cell | {
            "status": "void",
            "reason": f"{slow} did not settle, or no {IN_A_ROW} steps ran at its final speed",
        }
    ratios = {"ratio": best["seconds"] / inductor["seconds"]}
    if auto["seconds"] is not None:
        ratios["auto_ratio"] = auto["seconds"] / best["seconds"]
    return cell | ratios
