# SPDX-License-Identifier: Apache-2.0
"""mode="auto" on short runs: the tuning code is loaded once training has paid for it, or if a stored decision needs
it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import agspeed
from agspeed.frontend import startup
from agspeed.frontend.earned_start import EarnedStart
from agspeed.frontend.session import session_of

_SCRIPT = """
import json, sys, time, torch, agspeed
from agspeed.frontend import startup
from agspeed.frontend.session import session_of

@torch.compiler.assume_constant_result
def slow_where_not_captured(seconds):
    time.sleep(seconds)
    return 1.0

class Slow(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x) * slow_where_not_captured(float(sys.argv[6]))

torch.manual_seed(5)
model = Slow(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mode, cache_dir, num_steps, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
startup.PAYS_AFTER_S = seconds
agspeed.optimize(model, mode=mode, backends=json.loads(sys.argv[5]), cache_dir=cache_dir)
loaded = []
for step in range(num_steps):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    loaded.append(startup.has_machinery())
report = agspeed.report(model).to_dict()
trained = (session_of(model).tuner_snapshot() or {"ledger": {"steps": None}})["ledger"]["steps"]
print(json.dumps({"loaded": sum(loaded), "status": report["status"], "steps": report["timeline"]["steps"],
    "decision": report["decision"]["source"], "ledger_steps": trained}))
"""


def _train(
    mode: str, cache_dir: Path, num_steps: int, pays_after_s: float, backends: list[str], sleep_s: float = 0.002
) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _SCRIPT, mode, str(cache_dir), str(num_steps), str(pays_after_s)]
    command += [json.dumps(backends), str(sleep_s)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_short_run_loads_nothing_that_tunes(tmp_path: Path) -> None:
    trained = _train("auto", tmp_path, 20, 1000.0, ["native"])
    assert trained["loaded"] == 0 and trained["steps"] == 20
    assert trained["status"] == {"state": "tuning", "reason": "training has been too short so far to pay for tuning"}


@pytest.mark.slow
def test_longer_run_tunes_and_knows_of_the_steps_before(tmp_path: Path) -> None:
    trained = _train("auto", tmp_path, 60, 0.05, ["native"])
    assert 10 < trained["loaded"] < 60, "loaded after 50 ms of steps of 2 ms"
    assert trained["ledger_steps"] == pytest.approx(60, abs=1) and trained["steps"] == 60


@pytest.mark.slow
def test_earlier_decision_is_used_at_once(tmp_path: Path) -> None:
    first = _train("max", tmp_path, 600, 1000.0, ["aot"], sleep_s=0.02)
    assert first["status"]["state"] == "tuned", first
    second = _train("auto", tmp_path, 4, 1000.0, ["aot"], sleep_s=0.02)
    assert second["loaded"] == 4 and second["decision"] == "cache", second


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"not a database"])
def test_damaged_database_of_earlier_decisions_is_not_an_earlier_decision(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tuning.sqlite").write_bytes(content)
    assert _train("auto", tmp_path, 4, 1000.0, ["aot"])["loaded"] == 0


def test_model_trains_on_where_what_tunes_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise ImportError("no module named torch._something")

    model = agspeed.optimize(torch.nn.Linear(4, 2), mode="auto", cache_dir=tmp_path)
    monkeypatch.setattr(startup, "load_machinery", fail)
    monkeypatch.setattr(EarnedStart, "is_due", lambda earned: True)
    model(torch.ones(3, 4)).sum().backward()
    assert session_of(model) is not None and agspeed.status(model) == "eager"
    assert "torch._something" in agspeed.status(model).reason
