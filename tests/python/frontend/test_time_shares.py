# SPDX-License-Identifier: Apache-2.0
"""The report's shares of time: the parts of a step."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import agspeed
from agspeed.frontend.history import History
from agspeed.frontend.session_report import time_shares
from agspeed.frontend.steps import StepClock, StepTimes


class _Sleepy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return self.linear(x)


def _shares(model: torch.nn.Module) -> dict[str, float]:
    return {share["name"]: share["ms"] for share in agspeed.report(model).to_dict()["time_shares"]}


def test_forward_backward_optimizer_and_input_wait_are_shown_apart(tmp_path: Path) -> None:
    model = agspeed.optimize(_Sleepy(), cache_dir=tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
    shares = _shares(model)
    assert list(shares) == ["forward (eager)", "loss and backward", "optimizer", "waiting for input"]
    assert shares["forward (eager)"] >= 20
    assert shares["waiting for input"] >= 10
    agspeed.restore(model)


@pytest.mark.parametrize(
    ("waits", "milliseconds"), [([2.0, 2.0, 500.0], 2), ([2.0, 6.0] * 50 + [5000.0], 4), ([9.0], 9)]
)
def test_a_rare_pause_is_no_input_wait(waits: list[float], milliseconds: float) -> None:
    history = History()
    for wait in [0.0, *waits]:  # the wait before the first step is not seen
        history.add_step("eager", StepTimes(busy=0.01, input_wait=1e-3 * wait))
    assert time_shares(history)[-1]["ms"] == pytest.approx(milliseconds, rel=0.05)


@pytest.mark.parametrize("others", ["another model", "another session", "itself, paused"])
def test_time_in_which_others_train_is_no_input_wait(others: str, tmp_path: Path) -> None:
    model = agspeed.optimize(_Sleepy(), cache_dir=tmp_path)
    other = model if others == "itself, paused" else _Sleepy()
    if others == "another session":
        agspeed.optimize(other, cache_dir=tmp_path)
    optimizers = [torch.optim.SGD(trained.parameters(), lr=0.1) for trained in (model, other)]
    for _ in range(4):
        model(torch.randn(3, 4)).sum().backward()
        optimizers[0].step()
        with agspeed.paused() if other is model else nullcontext():
            other(torch.randn(3, 4)).sum().backward()
            optimizers[1].step()
    assert "waiting for input" not in _shares(model)


def test_a_step_function_shows_no_forward_of_its_own() -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @agspeed.optimize
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(3):
        step(torch.randn(3, 4))
    assert "forward and backward" in _shares(step)
    agspeed.restore(step)


def test_a_saved_report_names_itself_as_the_plan_to_replay(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    model = agspeed.optimize(torch.nn.Linear(4, 2), mode="deterministic", report=path, cache_dir=tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    assert agspeed.report(model).to_dict()["reproduce"]["plan"] == str(path)
    agspeed.restore(model)


def test_work_between_steps_of_a_loop_without_optimizer_is_no_wait() -> None:
    """Without an optimizer, a step ends at the next forward. Work there, such as compiles, is neither step nor wait."""
    seen: list[StepTimes] = []

    def on_end(times: StepTimes) -> None:
        seen.append(times)
        time.sleep(0.05)

    clock = StepClock(tuple, on_end)
    for _ in range(6):
        clock.forward_begins()
        clock.forward_ends()
    assert seen
    assert all(times.input_wait >= 0 for times in seen)
