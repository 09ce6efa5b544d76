# SPDX-License-Identifier: Apache-2.0
"""Every workload trains: two builds agree, losses are finite, and the loss falls on its real data."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import nn

import agspeed
from agspeed import native
from benchmarks import workloads
from benchmarks.measure import candidates, gemm_share
from benchmarks.workloads.base import Training
from tests.python.support.pairs import every, thorough

pytestmark = pytest.mark.usefixtures("one_thread")


def losses(training: Training, steps: int) -> list[float]:
    return [float(training.step(training.batches[index % len(training.batches)])) for index in range(steps)]


def test_there_is_the_promised_variety() -> None:
    assert len(workloads.names()) >= 18
    assert {"bert", "llama", "gan", "variable_length", "bf16_autocast", "graph_breaks"} <= set(workloads.names())


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown workload 'alexnet'; known: .*tiny_mlp"):
        workloads.load("alexnet")


# Operators in bfloat16 are slow on processors without instructions for them.
_TAKES_LONG = ("bf16_autocast",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    every(2, [name for name in workloads.names() if name not in _TAKES_LONG])
    + [thorough(name) for name in _TAKES_LONG],
)
def test_the_loss_falls(name: str) -> None:
    workload = workloads.load(name)
    seen = losses(workload.build(), workload.learn_steps)
    window = max(3, workload.learn_steps // 5)
    first, last = mean(seen[:window]), mean(seen[-window:])
    print(f"{name}, seed {workload.seed}: loss {first:.4f} -> {last:.4f} over {workload.learn_steps} steps")
    assert all(map(math.isfinite, seen))
    assert last < 0.95 * first


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.names())
def test_two_builds_start_equal(name: str) -> None:
    first, second = workloads.load(name).build(), workloads.load(name).build()
    for module, twin in zip(first.modules.values(), second.modules.values(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters(), strict=True))
        assert not {id(p) for p in module.parameters()} & {id(p) for p in twin.parameters()}
    assert len(first.batches) == len(second.batches) and len(first.batches) % first.period == 0


@pytest.mark.parametrize("name", ["dropout_heavy", "tiny_mlp"])
def test_the_random_stream_decides_the_run(name: str) -> None:
    runs = []
    for _ in range(2):
        training = workloads.load(name).build()
        torch.manual_seed(7)
        runs.append(losses(training, 3))
    assert runs[0] == runs[1]


def test_the_heavy_share_is_a_share() -> None:
    training = workloads.load("tiny_mlp").build()
    # Several measurements, because other processes may take the core during one.
    shares = [gemm_share.measure(training) for _ in range(5)]
    assert max(shares) > 0.02 and min(shares) < 0.9, shares


@pytest.mark.parametrize("name", ["gan", "tiny_mlp", "word_lm"])
def test_a_compiled_candidate_compiles_every_module_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    training = workloads.load(name).build()
    with candidates.running(candidates.find("aot_eager"), training, tmp_path, 300) as settled:
        assert settled.steps >= 6
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= len(training.modules)
    torch._dynamo.utils.counters.clear()
    assert all(math.isfinite(loss) for loss in losses(training, 2))
    assert not torch._dynamo.utils.counters["stats"]


@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
def test_a_session_settles_when_its_optimizer_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGSPEED_TUNE_OPTIMIZER", "on")

    def prepare(module: nn.Module, folder: Path) -> None:
        agspeed.optimize(module, mode="max", backends=["native"], cache_dir=str(folder))

    training = workloads.load("mlp").build()
    with candidates.running(candidates.Candidate("native", prepare, tunes=True), training, tmp_path, 300):
        [tuned] = agspeed.report(training.modules["model"]).to_dict()["optimizers"]
        assert tuned["name"] == "Adam" and tuned["speedup"] is not None, tuned["why"]


def test_a_failing_candidate_leaves_the_settled_ones_compiled(tmp_path: Path) -> None:
    settled, failing = workloads.load("tiny_mlp").build(), workloads.load("tiny_mlp").build()
    with candidates.running(candidates.find("aot_eager"), settled, tmp_path, 300):
        with (
            pytest.raises(TimeoutError, match=r"aot_eager was still settling after 1 steps and 0 s"),
            candidates.running(candidates.find("aot_eager"), failing, tmp_path, 0.0),
        ):
            pass
        torch._dynamo.utils.counters.clear()
        losses(settled, 2)
        assert not torch._dynamo.utils.counters["stats"], "the settled session was compiled again"
