# SPDX-License-Identifier: Apache-2.0
"""Sessions whose steps are timed by a device: a step's time counts for the plan that ran it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.backends import native
from agspeed.errors import UnsupportedError
from agspeed.frontend.session import Session, session_of
from tests.python.devices import fake_gpu
from tests.python.devices.fake_gpu import FakeGpu
from tests.python.frontend.conftest import fresh_dynamo, machinery  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore")

_COSTS = {"eager": 0.010, "aot": 0.006, "graph-eager": 0.009}


class Loop:
    """Training on a fake GPU. The host takes 1 ms for a step and reads the loss now and then."""

    def __init__(self, gpu: FakeGpu, tmp_path: Path, costs: dict[str, float], look_every: int, **keywords: Any) -> None:
        self.gpu, self.costs, self.look_every = gpu, costs, look_every
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        agspeed.optimize(self.model, cache_dir=tmp_path, **{"mode": "max", "backends": ["aot"], **keywords})
        self.num_steps = 0
        self.ran: list[str] = []

    @property
    def session(self) -> Session:
        session = session_of(self.model)
        assert session is not None
        return session

    def step(self) -> None:
        plan = self.session.plan
        self.ran.append(plan)
        loss = self.model(torch.ones(4, 8)).square().mean()
        self.gpu.work(self.costs[plan])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.gpu.host += 0.001
        self.num_steps += 1
        if self.num_steps % self.look_every == 0:
            self.gpu.synchronize()

    def decide(self) -> dict[str, Any]:
        for _ in range(4000):
            if agspeed.status(self.model) != "tuning":
                return agspeed.report(self.model).to_dict()
            self.step()
        raise AssertionError(agspeed.status(self.model).reason)


@pytest.mark.parametrize("look_every", [1, 5, 60])
def test_late_times_lead_to_the_decision_that_prompt_ones_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, look_every: int
) -> None:
    loop = Loop(fake_gpu.install(monkeypatch), tmp_path, _COSTS, look_every)
    found = loop.decide()
    assert found["decision"]["chosen"] == "aot"
    assert found["decision"]["speedup"]["estimate"] == pytest.approx(10 / 6, rel=1e-3)


def test_a_slower_candidate_is_not_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loop = Loop(fake_gpu.install(monkeypatch), tmp_path, {**_COSTS, "aot": 0.012}, look_every=7)
    assert loop.decide()["decision"]["chosen"] == "eager"


def test_without_gpu_kernels_in_the_build_the_others_are_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reason = "the LLVM of this build has no NVPTX target, so there are no GPU kernels"

    def refuse(*arguments: Any) -> Any:
        raise UnsupportedError(reason)

    monkeypatch.setattr(native, "_compile", refuse)
    loop = Loop(fake_gpu.install(monkeypatch), tmp_path, _COSTS, look_every=3, backends=["native", "aot"])
    found = loop.decide()
    assert found["decision"]["chosen"] == "aot"
    [region] = found["regions"]
    reasons = {candidate["name"]: str(candidate) for candidate in region["candidates"]}
    assert reason in reasons["native"] and reason not in reasons["aot"], region
    assert "native" not in loop.ran


def test_settled_steps_record_no_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = fake_gpu.install(monkeypatch)
    loop = Loop(gpu, tmp_path, _COSTS, look_every=3)
    loop.decide()
    for _ in range(100):  # the guard compares the first ones with the times at the decision
        loop.step()
    before = gpu.num_recorded
    for _ in range(600):
        loop.step()
    assert gpu.num_recorded - before <= 5 * 60, "nearly all of the steps after a decision go unseen"


def test_a_user_s_own_capture_sees_neither_events_nor_tuning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = fake_gpu.install(monkeypatch)
    loop = Loop(gpu, tmp_path, _COSTS, look_every=1)
    gpu.capturing = True
    for _ in range(5):
        loop.step()
    assert gpu.num_recorded == 0 and not loop.session.regions
    gpu.capturing = False
    assert loop.decide()["decision"]["chosen"] == "aot"


def test_the_database_knows_the_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from agspeed import native

    Loop(fake_gpu.install(monkeypatch), tmp_path, _COSTS, look_every=2).decide()
    extension: Any = native.load()
    rows = extension.TuningDatabase(str(tmp_path / "tuning.sqlite")).list()
    assert [row["key"]["gpu"] for row in rows] == [{"name": "fake"}]
