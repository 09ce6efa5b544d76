# SPDX-License-Identifier: Apache-2.0
"""Models off the CPU stay eager; the status, the report and one log line give this reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.frontend.dynamo_backend import agspeed_backend
from agspeed.frontend.optimizers.session import optimizer_session
from tests.python.distributed import delayed_device
from tests.python.support.small_models import FAST, mlp, steps

_REASON = "it works on the device meta"


def assert_left_to_eager(target: Any, caplog: pytest.LogCaptureFixture) -> None:
    status = agspeed.status(target)
    assert status == "eager" and _REASON in status.reason, (status, status.reason)
    found = agspeed.report(target).to_dict()
    assert found["status"]["state"] == "eager" and _REASON in found["status"]["reason"]
    assert found["decision"]["chosen"] == "eager" and _REASON in found["decision"]["why"]
    assert caplog.text.count(_REASON) == 1, caplog.text


class WithBuffer(nn.Linear):
    """Has parameters on the CPU and a buffer elsewhere."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.register_buffer("seen", torch.zeros(3, device="meta"))


class Leaves(nn.Linear):
    """Moves to another device in its forward."""

    def __init__(self) -> None:
        super().__init__(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).to("meta").tanh()


class CountsRows(nn.Linear):
    """Uses only the shape of one argument."""

    def __init__(self) -> None:
        super().__init__(8, 4)

    def forward(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * like.shape[0]


@pytest.mark.parametrize("make", [lambda: mlp().to("meta"), WithBuffer], ids=["parameters", "buffer"])
def test_module_on_another_device_is_left_as_it_is(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    before = dict(vars(model))
    assert agspeed.optimize(model, mode="max") is model and vars(model) == before
    assert_left_to_eager(model, caplog)


@pytest.mark.parametrize("mode", ["max", "deterministic", "auto"])
def test_module_that_moves_before_its_first_step(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    model = agspeed.optimize(mlp(), mode=mode, backends=["aot"]).to("meta")
    model(torch.ones(3, 8, device="meta")).sum().backward()
    assert model[0].weight.grad.device.type == "meta"
    assert_left_to_eager(model, caplog)


def test_module_that_moves_after_the_decision(caplog: pytest.LogCaptureFixture) -> None:
    model = agspeed.optimize(mlp(), **FAST)
    steps(model)
    assert agspeed.status(model) == "tuned"
    model.to("meta")
    for _ in range(2):  # the second call captures the part for which the first one had no graph
        model(torch.ones(3, 8, device="meta")).sum().backward()
    assert_left_to_eager(model, caplog)


def test_one_argument_on_another_device(caplog: pytest.LogCaptureFixture) -> None:
    model = agspeed.optimize(CountsRows(), **FAST)
    model(torch.ones(3, 8), torch.ones(5, device="meta")).sum().backward()
    assert_left_to_eager(model, caplog)


def test_graph_that_goes_to_another_device(caplog: pytest.LogCaptureFixture) -> None:
    model = agspeed.optimize(Leaves(), **FAST)
    for _ in range(5):
        assert model(torch.ones(3, 8)).device.type == "meta"
    assert_left_to_eager(model, caplog)


def test_step_function_with_an_argument_on_another_device(caplog: pytest.LogCaptureFixture) -> None:
    @agspeed.optimize(**FAST)
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.tanh().sum()

    assert step(torch.ones(3, device="meta")).device.type == "meta"
    assert_left_to_eager(step, caplog)


def test_step_function_whose_model_is_on_another_device(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(8, 4, device="meta")

    @agspeed.optimize(**FAST)
    def step() -> torch.Tensor:
        return model(torch.ones(3, 8, device="meta")).sum()

    for _ in range(3):
        step().backward()
    assert_left_to_eager(step, caplog)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_optimizer_with_parameters_on_another_device(is_mixed: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    elsewhere = nn.Parameter(torch.zeros(3, device="meta"))
    optimizer = torch.optim.SGD([*(model.parameters() if is_mixed else ()), elsewhere], lr=0.1)
    agspeed.optimize(model, optimizer, **FAST)
    tuned = optimizer_session(optimizer)
    assert tuned is not None and tuned.chosen == "eager" and _REASON in tuned.reason
    assert caplog.text.count(_REASON) == 1, caplog.text
    assert _REASON in agspeed.report(model).to_dict()["optimizers"][0]["why"]


def test_optimizer_that_gets_a_parameter_on_another_device(caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    agspeed.optimize(model, optimizer, **FAST)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, device="meta"))]})
    model(torch.ones(3, 8)).sum().backward()
    optimizer.step()
    tuned = optimizer_session(optimizer)
    assert tuned is not None and _REASON in tuned.reason
    assert not optimizer.param_groups[0]["fused"]
    assert caplog.text.count(_REASON) == 1, caplog.text


def test_backend_of_torch_compile(caplog: pytest.LogCaptureFixture) -> None:
    model = mlp().to("meta")
    compiled = torch.compile(model, backend=agspeed_backend, options={**FAST, "budget_s": 77.0})
    for _ in range(4):
        compiled(torch.ones(3, 8, device="meta")).sum().backward()
    assert_left_to_eager(compiled, caplog)


_ON_A_FAKE_DEVICE = """
import json, sys
import torch
from torch import nn
import agspeed
from tests.python.distributed import delayed_device

delayed_device.load()

def train(device, optimize):
    torch.manual_seed(5)
    model = nn.Linear(8, 4).to(device)
    optimize(model)
    for step in range(3):
        (model(torch.full((2, 8), 0.1 * step).to(device)) * 0.5).sum().backward()
    return [p.grad.cpu().tolist() for p in model.parameters()], agspeed.status(model)

expected, _ = train("cpu", lambda model: model)
found, status = train(delayed_device.NAME, lambda model: agspeed.optimize(model, mode="max"))
print(json.dumps({"same": found == expected, "status": status, "reason": status.reason}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not delayed_device.LIBRARY.exists(), reason="libdelayed_device.so is not built")
def test_model_on_an_accelerator_trains_as_without_agspeed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _ON_A_FAKE_DEVICE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same"] and found["status"] == "eager" and delayed_device.NAME in found["reason"], found
    assert done.stderr.count("agspeed:") == 1, done.stderr
