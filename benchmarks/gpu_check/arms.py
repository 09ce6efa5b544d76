# SPDX-License-Identifier: Apache-2.0
"""Whole training steps on the GPU: agspeed's choice against eager."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

import agspeed
from benchmarks.gpu_check.parts import Findings
from benchmarks.workloads import load
from benchmarks.workloads.base import Training

_NAMES = (
    "tiny_mlp",
    "mlp",
    "dropout_heavy",
    "bert",
    "vit",
    "llama",
    "char_gpt",
    "mlp_mixer",
    "batch_norm",
    "conv_net",
    "dlrm",
    "large_tensor",
)
_TUNING_S, _TIMED_STEPS = 25.0, 60
_LEAST_OVER_EAGER = 0.98


def on_gpu(name: str) -> Training:
    """Returns a workload's session with its modules and batches on the GPU."""
    training = load(name).build()
    for module in training.modules.values():
        module.to("cuda")
    batches = [tree_map_only(torch.Tensor, lambda tensor: tensor.to("cuda"), batch) for batch in training.batches]
    return dataclasses.replace(training, batches=batches)


def workloads(seconds: float) -> Findings:
    figures: dict[str, Any] = {}
    until, left_out = time.monotonic() + seconds, []
    for name in _NAMES:
        if time.monotonic() > until - _TUNING_S:
            left_out.append(name)
            continue
        try:
            figures[name] = _measure(name, min(_TUNING_S, until - time.monotonic()))
        except Exception as error:
            figures[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
    slow = [name for name, found in figures.items() if found.get("over_eager", 1.0) < _LEAST_OVER_EAGER]
    broken = [name for name, found in figures.items() if "error" in found]
    return {
        "holds": not slow and not broken,
        "why": f"slower than eager: {slow}; failed: {broken}",
        "figures": figures,
        "left_out": f"no time for {', '.join(left_out)}" if left_out else None,
    }


def _measure(name: str, limit_s: float) -> dict[str, Any]:
    eager, tuned = on_gpu(name), on_gpu(name)
    with tempfile.TemporaryDirectory() as cache:
        for module in tuned.modules.values():
            agspeed.optimize(module, mode="max", cache_dir=cache, budget_s=limit_s)
        until = time.monotonic() + limit_s
        step = 0
        while time.monotonic() < until and any(agspeed.status(m) == "tuning" for m in tuned.modules.values()):
            tuned.step(tuned.batches[step % len(tuned.batches)])
            step += 1
        states = {key: str(agspeed.status(module)) for key, module in tuned.modules.items()}
        ratios = []
        for _ in range(5):
            times = [_seconds(training) for training in (eager, tuned, tuned, eager)]
            ratios.append((times[0] + times[3]) / (times[1] + times[2]))
        for module in tuned.modules.values():
            agspeed.restore(module)
    return {"over_eager": statistics.median(ratios), "ratios": ratios, "states": states, "tuning_steps": step}


def _seconds(training: Training) -> float:
    """The mean seconds of a step, over some steps; waits for the device at both ends."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for index in range(_TIMED_STEPS):
        training.step(training.batches[index % len(training.batches)])
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / _TIMED_STEPS
