# SPDX-License-Identifier: Apache-2.0
"""Arms that retain memory: they are tried if steps have page faults, and switch the process's allocator."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed import config, native
from agspeed.regions.plan import is_plan
from agspeed.tuning.memory import arms
from agspeed.tuning.memory.arms import MemoryArms
from agspeed.tuning.memory.retained import RetainedMemory

_native: Any = native.load()
pytestmark = pytest.mark.skipif(_native is None, reason="the native extension is not built")
MANY, FEW = 5000, 3
FAST_S, SLOW_S = 0.01, 100.0


class Faults:
    """Replaces the process's count of page faults."""

    def __init__(self) -> None:
        self.total = 0

    def getrusage(self, who: int) -> Any:
        return SimpleNamespace(ru_minflt=self.total, ru_maxrss=0)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    counted = Faults()
    monkeypatch.setattr(resource, "getrusage", counted.getrusage)
    return counted


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[RetainedMemory]:
    if reason := _native.why_memory_is_not_retained():
        pytest.skip(reason)
    memory = RetainedMemory()
    monkeypatch.setattr(arms, "RETAINED", memory)
    yield memory
    memory.set_paused(True)


def session(device: str = "cpu", rank_sync: object = None) -> Any:
    home, target = SimpleNamespace(device=torch.device(device)), SimpleNamespace(name="Model")
    return SimpleNamespace(
        rank_sync=rank_sync, home=home, target=target, settings=config.resolve({}), plan="eager", regions=[]
    )


def run_steps(tried: MemoryArms, faults: Faults, plan: str, per_step: int, count: int = 6) -> None:
    for _ in range(count):
        faults.total += per_step
        tried.step_ended(plan, is_disturbed=False)


def arm(name: str, ratio: float | None = None, seconds: float = FAST_S) -> Any:
    measured = {"estimate": ratio} if ratio is not None else None
    return {"name": name, "state": "ready", "ratio": measured, "seconds": {"p50": seconds}}


def action(kind: str, name: str) -> Any:
    return {"kind": kind, "arm": name, "level": "idle", "seconds": 0.0, "reason": ""}


def test_eager_and_the_plans_ahead_are_tried(faults: Faults, memory: RetainedMemory) -> None:
    tried = MemoryArms(session())
    run_steps(tried, faults, "eager", MANY)
    known = [arm("eager"), arm("native", 0.8), arm("inductor", 0.9), arm("aot", 0.95), arm("slow", 2.0)]
    assert tried.beside("native", known) == ["native/retained", "eager/retained", "inductor/retained"]
    assert tried.beside("native", [*known, arm("native/retained")]) == [], "once is enough"


def test_page_faults_of_a_few_steps_count(faults: Faults, memory: RetainedMemory) -> None:
    """torch's allocator gives memory back now and then, so that most steps have no faults and some have very many."""
    tried = MemoryArms(session())
    for _ in range(5):
        run_steps(tried, faults, "eager", 0, count=4)
        run_steps(tried, faults, "eager", MANY, count=1)
    assert tried.beside("eager", [arm("eager")]) == ["eager/retained"]


def test_a_plan_that_lost_is_tried_beside_eager(faults: Faults, memory: RetainedMemory) -> None:
    tried = MemoryArms(session())
    run_steps(tried, faults, "eager", MANY)
    known = [arm("eager"), arm("native", 1.2), arm("slow", 2.0)]
    assert tried.beside("eager", known) == ["eager/retained", "native/retained"]


@pytest.mark.parametrize(("per_step", "seconds", "count"), [(FEW, FAST_S, 6), (MANY, SLOW_S, 6), (MANY, FAST_S, 3)])
def test_nothing_is_tried_without_a_gain_in_sight(
    faults: Faults, memory: RetainedMemory, per_step: int, seconds: float, count: int
) -> None:
    tried = MemoryArms(session())
    run_steps(tried, faults, "eager", per_step, count)
    assert tried.beside("eager", [arm("eager", seconds=seconds)]) == []
    assert tried.describe()["reason"] == "its steps have too few page faults"


def test_steps_that_nothing_counted_do_not_count(faults: Faults, memory: RetainedMemory) -> None:
    tried = MemoryArms(session())
    for _ in range(6):
        faults.total += MANY
        tried.steps_unseen()
        tried.step_ended("eager", is_disturbed=False)
    assert tried.beside("eager", [arm("eager")]) == []


@pytest.mark.parametrize("other", [{"device": "cuda"}, {"rank_sync": object()}])
def test_only_a_model_alone_on_the_cpu_tries_it(faults: Faults, memory: RetainedMemory, other: Any) -> None:
    tried = MemoryArms(session(**other))
    run_steps(tried, faults, "eager", MANY)
    assert tried.beside("eager", [arm("eager")]) == []
    assert tried.why_not("eager/retained") == "only a model that trains alone on the CPU tries it"
    assert tried.why_not("native") is None


def test_the_allocator_follows_the_tuner(faults: Faults, memory: RetainedMemory) -> None:
    tried = MemoryArms(session())
    run_steps(tried, faults, "eager", MANY)
    assert tried.beside("eager", [arm("eager")]) == ["eager/retained"]
    for kind, name, is_on in [
        ("run", "eager/retained", True),
        ("capture", "eager/retained", True),
        ("run", "eager", False),
        ("decide", "eager/retained", True),
        ("rollback", "eager/retained", False),
        ("run", "eager/retained", True),
    ]:
        tried.follow(action(kind, name))
        assert _native.retained_memory()["is_on"] is is_on, (kind, name)
        assert tried.step_ended("eager", is_disturbed=True) == ("eager/retained" if is_on else "eager")
    tried.close()
    assert not _native.retained_memory()["is_on"]


def test_an_earlier_decision_may_be_adopted_by_one_model(faults: Faults, memory: RetainedMemory) -> None:
    first, second = MemoryArms(session()), MemoryArms(session())
    assert first.why_not("native/retained") is None
    first.follow(action("run", "native/retained"))
    assert _native.retained_memory()["is_on"]
    assert second.why_not("native/retained") == "another model of this process decides about it"
    second.follow(action("run", "native/retained"))
    assert second.step_ended("native", is_disturbed=True) == "native", "it runs on the other's allocator"
    del first
    gc.collect()
    assert not _native.retained_memory()["is_on"], "its model is gone"


def test_the_report_has_the_page_faults(faults: Faults, memory: RetainedMemory) -> None:
    tried = MemoryArms(session())
    run_steps(tried, faults, "eager", MANY)
    tried.beside("eager", [arm("eager")])
    tried.follow(action("run", "eager/retained"))
    run_steps(tried, faults, "eager", FEW)
    described = tried.describe()
    assert (described["faults_before"], described["faults_after"]) == (MANY, FEW)
    assert described["is_on"] and described["reason"] is None
    tried.close()


def test_arms_that_retain_memory_are_plans() -> None:
    assert is_plan("native/retained") and is_plan("inductor+r2:native/retained")
    assert not is_plan("native/retain") and not is_plan("/retained")


class Elementwise(nn.Module):
    """A chain of operators on tensors that the C library maps anew, as they are larger than 32 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * self.weight).sigmoid() + 1).tanh()


@pytest.mark.slow
def test_a_model_with_large_tensors_tries_it_and_restore_undoes_it() -> None:
    if reason := _native.why_memory_is_not_retained():
        pytest.skip(reason)
    model, x = Elementwise(), torch.randn(34 << 18)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Not `native`: it can be several times as fast, and then the measurements of eager end early.
    agspeed.optimize(model, mode="max", backends=["aot"], numerics="off")
    for _ in range(600):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if agspeed.status(model) != "tuning":
            break
    report = agspeed.report(model).to_dict()
    measured = {plan["name"]: plan for plan in report["plans"]}
    assert "eager/retained" in measured and measured["eager/retained"]["speedup"] is not None, report["plans"]
    retained = report["memory"]["retained"]
    assert retained["faults_after"] < retained["faults_before"] / 4, retained
    chosen = report["decision"]["chosen"]
    assert retained["is_on"] == chosen.endswith("/retained"), chosen
    agspeed.restore(model)
    assert not _native.retained_memory()["is_on"]
    assert _native.retained_memory()["idle_bytes"] == 0
    assert agspeed.status(model).memory == ""
