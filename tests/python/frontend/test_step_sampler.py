# SPDX-License-Identifier: Apache-2.0
"""After the decision most steps of a compiled plan run without clock and hooks, but the report counts all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

import agspeed
from agspeed.frontend.steps import StepClock

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def timed_forwards(monkeypatch: pytest.MonkeyPatch) -> list[StepClock]:
    """A list with one entry for each forward that a clock has timed."""
    seen: list[StepClock] = []
    forward_begins = StepClock.forward_begins

    def noting(clock: StepClock) -> None:
        seen.append(clock)
        forward_begins(clock)

    monkeypatch.setattr(StepClock, "forward_begins", noting)
    return seen


def _settled(cache_dir: Path) -> tuple[torch.nn.Module, Callable[..., None]]:
    """Returns a model that has settled on a compiled plan, and its training step of `forwards` forwards."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    model = agspeed.optimize(model, mode="deterministic", backends=["aot"], cache_dir=cache_dir)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(forwards: int = 1) -> None:
        for _ in range(forwards):
            model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    assert str(agspeed.status(model)).startswith("tuned")
    return model, step


def _steps(model: torch.nn.Module) -> int:
    return int(agspeed.report(model).to_dict()["timeline"]["steps"])


@pytest.mark.parametrize("forwards", [1, 3])
def test_few_steps_are_timed_and_all_are_counted(
    tmp_path: Path, timed_forwards: list[StepClock], forwards: int
) -> None:
    model, step = _settled(tmp_path)
    for _ in range(300):  # the first skip has ended; it assumed one forward per step, the next skip knows the number
        step(forwards)
    before = _steps(model)
    timed_forwards.clear()
    for _ in range(1000):
        step(forwards)
    assert 1 <= len(timed_forwards) <= 100 * forwards
    assert _steps(model) - before == pytest.approx(1000, abs=2)
    agspeed.restore(model)


def test_a_session_that_skips_steps_leaves_no_hook_in_the_optimizer(tmp_path: Path) -> None:
    before = len(torch_optimizer._global_optimizer_pre_hooks), len(torch_optimizer._global_optimizer_post_hooks)
    model, step = _settled(tmp_path)
    step()
    after = len(torch_optimizer._global_optimizer_pre_hooks), len(torch_optimizer._global_optimizer_post_hooks)
    assert after == before
    agspeed.restore(model)


def test_a_model_that_is_not_trained_any_more_costs_the_next_one_no_hook(tmp_path: Path) -> None:
    before = len(torch_optimizer._global_optimizer_pre_hooks), len(torch_optimizer._global_optimizer_post_hooks)
    model = agspeed.optimize(torch.nn.Linear(4, 2), mode="auto", backends=["aot"], cache_dir=tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    step()
    other = torch.nn.Linear(4, 2)
    others_optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    for _ in range(20):
        other(torch.ones(3, 4)).sum().backward()
        others_optimizer.step()
    after = len(torch_optimizer._global_optimizer_pre_hooks), len(torch_optimizer._global_optimizer_post_hooks)
    assert after == before
    counted = _steps(model)
    for _ in range(3):
        step()
    assert _steps(model) == counted + 3, "it is watched again when it is trained again"
    agspeed.restore(model)


def test_a_new_shape_ends_a_skip(tmp_path: Path, timed_forwards: list[StepClock]) -> None:
    """A graph captured after the decision is compiled within two steps, without waiting for the end of the skip."""
    model, step = _settled(tmp_path)
    step()
    before = _steps(model)
    timed_forwards.clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.ones(5, 4)).sum().backward()
        optimizer.step()
    assert timed_forwards
    assert _steps(model) - before == pytest.approx(3, abs=1)
    assert [region["chosen"] for region in agspeed.report(model).to_dict()["regions"]] == ["aot", "aot"]
    agspeed.restore(model)


def test_optimizer_hooks_registered_by_others_survive_the_end_of_tuning(tmp_path: Path) -> None:
    """torch iterates over its hooks while agspeed's is removed. A hook registered after it must not break the
    iteration."""
    calls: list[str] = []

    def note(*args: Any) -> None:
        calls.append("hook")

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.RMSprop(model.parameters())  # has no fused step, so its session ends in its first step
    model, optimizer = agspeed.optimize(
        model, optimizer, mode="deterministic", backends=["graph-eager"], cache_dir=tmp_path
    )
    handles = [
        torch_optimizer.register_optimizer_step_pre_hook(note),
        torch_optimizer.register_optimizer_step_post_hook(note),
        optimizer.register_step_pre_hook(note),
        optimizer.register_step_post_hook(note),
    ]
    try:
        for _ in range(4):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        assert len(calls) == 16
    finally:
        for handle in handles:
            handle.remove()
        agspeed.restore(model)
