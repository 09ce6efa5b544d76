# SPDX-License-Identifier: Apache-2.0
"""Decisions outlive their process: a second one runs the stored plan from its first step on and tunes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """
import json, sys, time, torch
import agspeed
from agspeed.frontend.target import session_of

class SlowInEager(torch.nn.Sequential):
    def forward(self, x):
        if not torch.compiler.is_compiling():
            time.sleep(0.004)  # not part of the captured graph: every captured plan is clearly faster
        return super().forward(x)

def train(model, num_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(7)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=data)).square().mean().backward()
        optimizer.step()

def make():
    torch.manual_seed(5)
    return SlowInEager(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

mode, cache_dir, num_steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
model, expected = agspeed.optimize(make(), mode=mode, backends=["aot"], cache_dir=cache_dir), make()
train(model, num_steps)
train(expected, num_steps)
session = session_of(model)
tuner = session.controller.snapshot()
print(json.dumps({
    "decision": agspeed.report(model).to_dict()["decision"],
    "status": agspeed.status(model),
    "selected": [region.selected for region in session.regions],
    "step": tuner["decision"] and tuner["decision"]["step"],
    "trials": [entry for entry in tuner["timeline"] if entry["what"] == "trial"],
    "equal": all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters())),
}))
"""


def _run(mode: str, cache_dir: Path, num_steps: int) -> dict[str, Any]:
    command = [sys.executable, "-c", _SCRIPT, mode, str(cache_dir), str(num_steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def tuned_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the decision of an earlier process, which measured it."""
    cache_dir = tmp_path_factory.mktemp("cache")
    first = _run("max", cache_dir, 1200)
    assert (first["decision"]["chosen"], first["decision"]["source"]) == ("aot", "measured"), first
    assert first["trials"] and first["equal"], first
    return cache_dir


@pytest.mark.parametrize("mode", ["auto", "fast-start"])
def test_second_process_runs_the_stored_plan_at_once(mode: str, tuned_cache: Path) -> None:
    second = _run(mode, tuned_cache, 8)
    assert (second["decision"]["chosen"], second["decision"]["source"]) == ("aot", "cache"), second
    assert (second["status"], second["selected"], second["trials"]) == ("tuned", ["aot"], []), second
    assert second["step"] <= 1 and second["equal"], second
