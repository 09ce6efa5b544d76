# SPDX-License-Identifier: Apache-2.0
"""Whole sessions on the device "delayed", which computes asynchronously: training equals eager's, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.distributed import delayed_device

_PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
import agspeed
from agspeed.backends import candidate
from agspeed.devices import placement
from tests.python.distributed import delayed_device

delayed_device.load()
placement.TIMED_DEVICES.add(delayed_device.NAME)
type(candidate("aot")).devices = ("cpu", "cuda", delayed_device.NAME)
module = torch.get_device_module(delayed_device.NAME)
module.get_rng_state = lambda device=None: torch.zeros(1)
module.set_rng_state = lambda state, device=None: None

def train(mode, steps):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(delayed_device.NAME)
    if mode is not None:
        agspeed.optimize(model, mode=mode, backends=["aot"], cache_dir=sys.argv[1] + mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for step in range(steps):
        data = torch.full((2, 8), 0.01 * step).to(delayed_device.NAME)
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()], model

found = {}
for mode, steps in (("deterministic", 12), ("max", 150)):
    expected, _ = train(None, steps)
    weights, model = train(mode, steps)
    report = agspeed.report(model).to_dict()
    (aot,) = report["regions"][0]["candidates"]
    found[mode] = {
        "same": all(torch.equal(a, b) for a, b in zip(expected, weights)),
        "status": str.__str__(agspeed.status(model)),
        "gate": aot["gate"]["verdict"],
        "timed": sum(plan["step_ms"] is not None for plan in report["plans"]),
    }
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(not delayed_device.LIBRARY.exists(), reason="libdelayed_device.so is not built")
def test_a_session_on_a_device_trains_as_eager_does(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for mode in ("deterministic", "max"):
        assert found[mode]["same"] and found[mode]["gate"] == "passed", found
    assert found["deterministic"]["status"].startswith("tuned"), found
    assert found["max"]["timed"] == 2, found
