# SPDX-License-Identifier: Apache-2.0
"""A compile process beside training, on a GPU that may have no memory for it, and errors that lose the GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed import config
from agspeed.backends import CompileOptions
from agspeed.backends.region import BackwardFailures
from agspeed.devices import accelerator, driver
from agspeed.devices.accelerator import CHILD_BYTES, Accelerator
from agspeed.errors import AgspeedError
from agspeed.frontend.session import session_of
from agspeed.regions.outcome import Outcome
from agspeed.tuning.child import queue
from agspeed.tuning.child.queue import CompileQueue
from tests.python.frontend.conftest import fresh_dynamo, machinery  # noqa: F401


def gpu(monkeypatch: pytest.MonkeyPatch, compute_mode: str = "default", free_bytes: int | None = None) -> Accelerator:
    monkeypatch.setattr(driver, "compute_mode", lambda index: compute_mode)
    found = Accelerator(torch.device("cuda", 0))
    monkeypatch.setattr(found, "free_bytes", lambda: free_bytes)
    return found


def test_a_gpu_with_room_takes_a_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu(monkeypatch).why_no_child(1 << 30) is None
    assert gpu(monkeypatch, free_bytes=CHILD_BYTES + 100).why_no_child(100) is None


def test_too_little_memory_and_exclusive_modes_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = gpu(monkeypatch, free_bytes=CHILD_BYTES).why_no_child(64 << 20)
    assert reason is not None and "1024 MiB left" in reason and "1088 MiB" in reason
    for mode in ("exclusive process", "prohibited"):
        reason = gpu(monkeypatch, compute_mode=mode).why_no_child(0)
        assert reason is not None and "admits one process only" in reason


@pytest.mark.parametrize("mode", ["auto", "max"])
def test_without_room_nothing_is_handed_to_a_child(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(
        queue, "accelerator_of", lambda device: SimpleNamespace(why_no_child=lambda needed: "it is full")
    )
    jobs = CompileQueue(lambda: CompileOptions(num_threads=1), config.resolve({"mode": mode}))
    gm = torch.fx.symbolic_trace(nn.Linear(2, 2))
    region: Any = SimpleNamespace(
        index=0, gm=gm, where="net.py:1", key="k", sample=[torch.ones(2, 2)], example_inputs=[], outcomes={}
    )
    assert jobs.start("inductor", [(region, "inductor")], "idle") is None
    if mode == "max":  # the training process compiles instead
        assert not region.outcomes and not jobs.lacks(region, "inductor")
    else:
        outcome = region.outcomes["inductor"]
        assert outcome.state == "skipped" and "it is full" in outcome.reason


def test_a_lost_gpu_is_raised_with_the_candidate_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    session = session_of(model)
    assert session is not None
    [region] = session.regions

    def lose(*args: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    region.outcomes["aot"] = Outcome("aot", "ready", runner=lose)
    run = region._protected("aot", lose)
    with pytest.raises(AgspeedError, match="aot raised CUDA error: an illegal memory access"):
        run(*region.example_inputs)
    assert not region.outcomes["aot"].usable


class LosesTheGpu:
    """Code that falls back by itself, as `native` does, and reports its failures."""

    def __init__(self) -> None:
        self.listener: Callable[[Exception], None] = lambda error: None

    def watch(self, on_failure: Callable[[Exception], None]) -> None:
        self.listener = on_failure

    def direct(self, *args: Any) -> Any:
        self.listener(RuntimeError("gelu: launching k failed: an illegal memory access (CUDA error 700)"))

    __call__ = direct


def test_code_without_python_of_ours_in_between_is_named_when_it_lost_the_gpu() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    session = session_of(model)
    assert session is not None
    [region] = session.regions
    code = LosesTheGpu()
    region.outcomes["aot"] = Outcome("aot", "ready", runner=code)
    region.select("aot")
    for _ in range(2):  # the second time, the arm is out already
        with pytest.raises(AgspeedError, match="aot raised gelu: launching k failed: an illegal memory access"):
            code.direct(*region.example_inputs)
        assert region.selected == "graph-eager"


def test_nothing_stands_in_for_a_backward_that_lost_the_gpu() -> None:
    for text, is_final in (("CUDA error: misaligned address", True), ("out of luck", False)):
        failures = BackwardFailures()
        failures.on_failure = lambda error: None

        def fail(inputs: list[Any], text: str = text) -> Any:
            raise RuntimeError(text)

        with pytest.raises(RuntimeError, match=text):
            failures.guarded(fail)([])
        assert failures.take_final() is is_final


def test_flags_of_operators_are_read_only_where_cuda_is_in_use() -> None:
    assert accelerator.numerics_flags() == {}
    before = torch.backends.cudnn.benchmark
    accelerator.set_numerics_flags({"cudnn.benchmark": not before, "cuda.matmul.allow_tf32": None})
    assert torch.backends.cudnn.benchmark is not before
    accelerator.set_numerics_flags({"cudnn.benchmark": before})
    assert torch.backends.cudnn.benchmark is before
