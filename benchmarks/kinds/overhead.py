# SPDX-License-Identifier: Apache-2.0
"""Cost of the machinery itself, in microseconds: `extra_us` of each candidate over eager, in ABBA blocks.

`"part": "call"` times the forward call only, without gradient: what agspeed adds to a call when it has chosen eager.
"step" times whole training steps. "stages" does, too, but compares each candidate X-staged with X: `stage_us` is the
cost of each stage after the first. "group" times steps of one of two ranks under DistributedDataParallel: a session
that decided together with the other rank, beside one that decided alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workloads
from benchmarks.kinds import steady
from benchmarks.measure import candidates, lockstep
from benchmarks.measure.machine import Watch
from benchmarks.measure.pairing import Limits, compare, compare_all
from benchmarks.workloads.base import Batch, Training, Workload, called_through


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"candidates": case["candidates"]}]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    if spec["case"]["part"] == "group":
        return measure_group(spec)
    workload = workloads.load(spec["case"]["workload"])
    limits = Limits(**spec["settings"]["limits"] | {"half_width": 0.002})
    part = call_only if spec["case"]["part"] == "call" else lambda training: training
    reference, watch = part(steady.warm_eager(workload)), Watch(spec["cores"])
    control = compare(reference, part(steady.warm_eager(workload)), limits).to_dict()
    rows: dict[str, Any] = {}
    for name in spec["candidates"]:
        try:
            with _running(name, workload, spec) as (training, settled):
                if spec["case"]["part"] == "stages":
                    with _running(name.removesuffix("-staged"), workload, spec) as (unstaged, _):
                        compared = compare(unstaged, training, limits).to_dict() | {"stages": _num_stages(training)}
                else:
                    compared = compare(reference, part(training), limits).to_dict()
                rows[name] = {"status": "timed", "chosen": settled.chosen, **compared}
        except Exception as error:
            rows[name] = {"status": "failed", "reason": steady.describe(error)}
        # copies of a model share their code: without this, the next one would run this one's guards, too
        torch._dynamo.reset()
    return {
        "eager_ms": control["reference_ms"],
        "control": control,
        "candidates": rows,
        "environment": watch.read(),
    }


@contextmanager
def _running(name: str, workload: Workload, spec: dict[str, Any]) -> Iterator[tuple[Training, candidates.Settled]]:
    training, seconds = workload.build(), spec["settings"]["settle_seconds"]
    with candidates.running(candidates.find(name), training, Path(spec["cache_dir"]), seconds) as settled:
        yield replace(training, memory=candidates.find(name).memory), settled


def _num_stages(training: Training) -> int:
    """The number of stages in which the gradients of a session's step leave."""
    from agspeed.frontend.session import session_of

    sessions = [session_of(module) for module in training.modules.values()]
    regions = [region for session in sessions if session is not None for region in session.regions]
    return sum(region.outcomes[region.selected].runner.num_stages for region in regions)


def measure_group(spec: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**spec["settings"]["limits"] | {"half_width": 0.002})
    watch, [name] = Watch(spec["cores"]), spec["candidates"]
    with lockstep.sessions(build_group, spec, Path(spec["cache_dir"])) as (reference, control, together):
        candidate, seconds = candidates.find(name), spec["settings"]["settle_seconds"]
        for training in (reference, control):
            candidates.settle(candidates.find("agspeed-eager-alone"), training, seconds)
        settled = candidates.settle(candidate, together, seconds)
        compared = compare_all(reference, {"": control, name: together}, limits)
    return {
        "eager_ms": compared[""].to_dict()["reference_ms"],
        "control": compared[""].to_dict(),
        "candidates": {name: {"status": "timed", "chosen": settled.chosen, **compared[name].to_dict()}},
        "environment": watch.read(),
    }


def build_group(spec: dict[str, Any]) -> list[Training]:
    """Builds three sessions on each of two ranks: two that decide alone, and one that decides with the other rank."""
    built = []
    for name in ("agspeed-eager-alone", "agspeed-eager-alone", *spec["candidates"]):
        with called_through(DistributedDataParallel):
            built.append(workloads.load(spec["case"]["workload"]).build())
        candidates.prepare(candidates.find(name), built[-1], Path(spec["cache_dir"]))
    return built


def call_only(training: Training) -> Training:
    """Returns the same session with another step: one forward call of its model under no_grad."""
    model = training.modules["model"]

    def step(batch: Batch) -> Tensor:
        with torch.no_grad():
            return model(batch[0])

    return Training(training.modules, step, training.batches, optimizers=training.optimizers)


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    for row in results[0]["candidates"].values():
        if row.get("stages", 1) > 1:
            row["stage_us"] = {key: extra / (row["stages"] - 1) for key, extra in row["extra_us"].items()}
    control = results[0]["control"]["speedup"]["value"]
    fair = steady.CONTROL_RANGE[0] <= control <= steady.CONTROL_RANGE[1]
    verdict = {"status": "ok"} if fair else {"status": "void", "reason": f"eager against eager read {control:.3f}"}
    return results[0] | verdict
