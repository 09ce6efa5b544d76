# SPDX-License-Identifier: Apache-2.0
"""Decisions outlive their process: a second process runs the stored plan from its first step and tunes nothing."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.python.frontend import plug_ins
from tests.python.support.scripts import output_of, records

_SCRIPT = """
import json, sys, time, torch
import agspeed
from agspeed.frontend.session import session_of

@torch.compiler.assume_constant_result
def slow_where_not_captured(seconds):
    time.sleep(seconds)
    return 1.0

class SlowInEager(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x) * slow_where_not_captured(0.02)  # every captured plan is clearly faster

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
tuner = session.tuner_snapshot()
print(json.dumps({
    "decision": agspeed.report(model).to_dict()["decision"],
    "status": agspeed.status(model),
    "selected": [region.selected for region in session.regions],
    "step": tuner["decision"] and tuner["decision"]["step"],
    "start_up": session.history.start_up_seconds,
    "ledger": tuner["ledger"],
    "trials": [entry for entry in tuner["timeline"] if entry["what"] == "trial"],
    "equal": all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters())),
}))
"""


def _run(mode: str, cache_dir: Path, num_steps: int) -> dict[str, Any]:
    return output_of(_SCRIPT, mode, cache_dir, num_steps)


@pytest.fixture(scope="module")
def tuned_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the decision of an earlier process, which measured it."""
    cache_dir = tmp_path_factory.mktemp("cache")
    first = _run("max", cache_dir, 1200)
    assert (first["decision"]["chosen"], first["decision"]["source"]) == ("aot", "measured"), first
    assert first["trials"] and first["equal"], first
    assert 0 < first["start_up"] < first["ledger"]["foreground_seconds"], "loading agspeed is a cost of tuning"
    return cache_dir


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "fast-start"])
def test_second_process_runs_the_stored_plan_at_once(mode: str, tuned_cache: Path) -> None:
    before = records(tuned_cache)
    second = _run(mode, tuned_cache, 8)
    assert records(tuned_cache) == before, "how the plan was measured stays on record"
    assert (second["decision"]["chosen"], second["decision"]["source"]) == ("aot", "cache"), second
    assert (second["status"], second["selected"], second["trials"]) == ("tuned", ["aot"], []), second
    assert second["step"] <= 1 and second["equal"], second


@pytest.mark.slow
def test_a_decision_made_under_another_torch_is_not_used(tuned_cache: Path) -> None:
    another_patch = "import torch; torch.__version__ = torch.__version__.partition('+')[0] + '.1'\n"
    other = output_of(another_patch + _SCRIPT, "fast-start", tuned_cache, 8)
    assert other["decision"]["source"] != "cache" and other["equal"], other


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["aot+rX:aot", "aot/no-layout", "nothing-that-exists"])
def test_a_decision_that_names_no_plan_does_not_stop_training(arm: str, tuned_cache: Path, tmp_path: Path) -> None:
    """An archive from elsewhere may have brought the decision, with a valid checksum."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    shutil.copy2(tuned_cache / "tuning.sqlite", cache)
    with closing(sqlite3.connect(cache / "tuning.sqlite")) as database, database:
        for key, record in database.execute("SELECT key, record FROM decisions").fetchall():
            text = json.dumps(json.loads(record) | {"arm": arm})
            checksum = zlib.crc32(f"{key}\0{text}".encode())
            database.execute("UPDATE decisions SET record = ?, crc32 = ? WHERE key = ?", (text, checksum, key))
    other = _run("fast-start", cache, 8)
    assert other["decision"]["source"] != "cache" and other["equal"], other


@pytest.mark.slow
def test_the_re_checks_of_a_stored_plan_show_what_it_is_worth(tuned_cache: Path) -> None:
    decision = _run("auto", tuned_cache, 600)["decision"]
    assert decision["source"] == "cache" and decision["speedup"]["estimate"] > 1.5, decision
    assert decision["speedup"]["pairs"] >= 6, decision


# --- plans that differ from region to region --------------------------------------------------------------------------

_PLUG_INS = """
import torch
from agspeed.backends import Candidate

class _Drops(Candidate):
    def compile(self, gm, example_inputs, options):
        for node in list(gm.graph.nodes):
            if node.op == "call_function" and node.target is self.dropped:
                node.replace_all_uses_with(node.args[0])
                gm.graph.erase_node(node)
        gm.recompile()
        return gm.forward

class First(_Drops):
    name = "plug-in-first"
    in_process = True
    dropped = torch.matmul

class Second(_Drops):
    name = "plug-in-second"
    dropped = torch.mm
"""
_TWO_REGIONS = """
import json, sys, torch
import agspeed
from agspeed.frontend.session import session_of

class TwoRegions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.register_buffer("big", torch.ones(450, 450))
        self.register_buffer("small", torch.ones(300, 300))

    def forward(self, x):
        x = self.one(x) + 0.0 * torch.matmul(self.big, self.big).sum()  # plug-in-first does without the product
        torch._dynamo.graph_break()
        return self.two(x.tanh()) + 0.0 * torch.mm(self.small, self.small).sum()  # and plug-in-second without this one

def train(model, is_over):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(7)
    num_steps = 0
    while not is_over(num_steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=data)).square().mean().backward()
        optimizer.step()
        num_steps += 1
    return num_steps

torch.set_num_threads(1)
model = agspeed.optimize(TwoRegions(), mode="max", backends=["plug-in-first", "plug-in-second"], cache_dir=sys.argv[1])
expected = TwoRegions()
num_steps = train(model, lambda step: step > 5000 or (step > 5 and agspeed.wait(model) != "tuning"))
train(expected, lambda step: step == num_steps)
report = agspeed.report(model).to_dict()
print(json.dumps({
    "chosen": report["decision"]["chosen"],
    "source": report["decision"]["source"],
    "why": report["decision"]["why"],
    "plans": [plan["name"] for plan in report["plans"]],
    "selected": [region.selected for region in session_of(model).regions],
    "equal": all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters())),
    "steps": num_steps,
}))
"""


@pytest.mark.slow
def test_best_candidate_of_each_region_is_found_stored_and_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_ins.install(tmp_path, monkeypatch, _PLUG_INS, {"plug-in-first": "First", "plug-in-second": "Second"})
    first = output_of(_TWO_REGIONS, tmp_path / "cache")
    best = ["plug-in-first", "plug-in-second"]
    assert first["selected"] == best and first["source"] == "measured" and first["equal"], first
    assert first["chosen"] == "plug-in-first+r1:plug-in-second", first
    assert first["chosen"] in first["plans"] and first["chosen"] in first["why"], first
    second = output_of(_TWO_REGIONS, tmp_path / "cache")
    assert (second["chosen"], second["source"]) == (first["chosen"], "cache"), second
    assert second["steps"] < 10, second
    assert second["selected"] == best and second["equal"], second
