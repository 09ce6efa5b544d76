# SPDX-License-Identifier: Apache-2.0
"""Cost of the machinery itself, in microseconds: `extra_us` of each candidate against eager, in ABBA blocks.

With `"part": "call"` only the forward call is timed (no gradient), which shows what a call through agspeed adds when
eager was chosen; with "step" whole training steps are.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import workloads
from benchmarks.kinds import steady
from benchmarks.measure import candidates
from benchmarks.measure.machine import Watch
from benchmarks.measure.pairing import Limits, compare
from benchmarks.workloads.base import Batch, Training


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"candidates": case["candidates"]}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**spec["settings"]["limits"] | {"half_width": 0.002})
    reference, watch = _prepared("eager", spec), Watch(spec["cores"])
    result: dict[str, Any] = {"control": compare(reference, _prepared("eager", spec), limits).to_dict()}
    result["eager_ms"] = result["control"]["reference_ms"]
    result["candidates"] = {name: _candidate(name, spec, reference, limits) for name in spec["candidates"]}
    return result | {"environment": watch.read()}


def _candidate(name: str, spec: dict[str, Any], reference: Training, limits: Limits) -> dict[str, Any]:
    try:
        return {"status": "timed", **compare(reference, _prepared(name, spec), limits).to_dict()}
    except Exception as error:
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def _prepared(name: str, spec: dict[str, Any]) -> Training:
    training, candidate = workloads.load(spec["case"]["workload"]).build(), candidates.find(name)
    candidates.prepare(candidate, training, Path(spec["cache_dir"]))
    candidates.settle(candidate, training, spec["settings"]["settle_seconds"])
    return call_only(training) if spec["case"]["part"] == "call" else training


def call_only(training: Training) -> Training:
    """The same session with a step that is one forward call of its model under no_grad."""
    model = training.modules["model"]

    def step(batch: Batch) -> Tensor:
        with torch.no_grad():
            return model(batch[0])

    return Training(training.modules, step, training.batches)


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    control = results[0]["control"]["speedup"]["value"]
    fair = steady.CONTROL_RANGE[0] <= control <= steady.CONTROL_RANGE[1]
    verdict = {"status": "ok"} if fair else {"status": "void", "reason": f"eager against eager read {control:.3f}"}
    return results[0] | verdict
