# SPDX-License-Identifier: Apache-2.0
"""Many models that one process tunes one after another, compared with each model alone in a process of its own.

A model's speed is relative to eager's, in one rotation with a control. The speeds of two processes are compared. They
also depend on where the system has put a process's memory. So each model runs alone twice: before and after the shared
process.
"""

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks import workloads
from benchmarks.kinds import steady
from benchmarks.measure import candidates
from benchmarks.measure.machine import Watch
from benchmarks.measure.pairing import Limits, compare_all

_CANDIDATE = "agspeed"


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """A process for each model, one for all, and again one for each. Every process has a cache of its own."""
    alone = [{"models": [model], "cache": "fresh"} for model in case["workloads"]]
    return [*alone, {"models": case["workloads"], "cache": "fresh"}, *alone]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Measures the models in turn. Each stays optimized while later ones tune."""
    watch = Watch(spec["cores"])
    with ExitStack() as stack:
        stack.callback(torch._dynamo.reset)
        rows = {model: _measured(model, spec, stack) for model in spec["models"]}
    return {"models": rows, "environment": watch.read()}


def _measured(model: str, spec: dict[str, Any], stack: ExitStack) -> dict[str, Any]:
    workload, settings = workloads.load(model), spec["settings"]
    reference, control, training = steady.warm_eager(workload), steady.warm_eager(workload), workload.build()
    tuned = candidates.running(
        candidates.find(_CANDIDATE), training, Path(spec["cache_dir"]) / model, settings["settle_seconds"]
    )
    settled = stack.enter_context(tuned)
    compared = compare_all(reference, {steady.CONTROL: control, _CANDIDATE: training}, Limits(**settings["limits"]))
    return {
        "chosen": ", ".join(dict.fromkeys(settled.chosen.values())),
        "settle_seconds": settled.seconds,
        "control": compared[steady.CONTROL].speedup.to_dict(),
        "speedup": compared[_CANDIDATE].speedup.to_dict(),
    }


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell is void if eager differs from eager."""
    count = len(results) // 2
    alone, again = (
        {model: row for result in lonely for model, row in result["models"].items()}
        for lonely in (results[:count], results[count + 1 :])
    )
    together = results[count]
    low, high = steady.CONTROL_RANGE
    uneven = [
        f"{model} {row['control']['value']:.3f}"
        for rows in (alone, together["models"], again)
        for model, row in rows.items()
        if not low <= row["control"]["value"] <= high
    ]
    cell: dict[str, Any] = {"status": "ok", "environment": together["environment"]}
    if uneven:
        cell |= {"status": "void", "reason": "eager against eager read " + ", ".join(uneven)}
    return cell | {
        "shared": [
            {
                "model": model,
                "alone": row,
                "again": again[model],
                "together": together["models"][model],
                "over_alone": _ratio(*(rows[model]["speedup"] for rows in (together["models"], alone, again))),
            }
            for model, row in alone.items()
        ]
    }


def _ratio(mine: dict[str, Any], alone: dict[str, Any], again: dict[str, Any]) -> dict[str, float]:
    """`mine` over the geometric mean of the others, with its interval. Half-widths of independent medians add up as
    squares. The interval of the mean covers both values.
    """
    low, high = sorted((alone["value"], again["value"]))
    value = mine["value"] / math.sqrt(low * high)
    apart = math.sqrt(high / low) - 1
    half = math.hypot(mine["half_width"], max(apart, math.hypot(alone["half_width"], again["half_width"]) / 2))
    return {"value": value, "low": value * (1 - half), "high": value * (1 + half)}
