# SPDX-License-Identifier: Apache-2.0
"""A training process that is killed while it tunes loses nothing that it has written, and its successor uses it.

One process imports everything and forks. Trainers are killed with SIGKILL at a random moment of a random step. Each has
a successor with the same cache, which trains some steps and reports what it found there.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agspeed.reporting.format import plural
from tests.python.frontend import plug_ins

NUM_SEEDS = 20

_PLUG_INS = """
import os, torch
from agspeed.backends import Candidate

class _Noted(Candidate):
    in_process = True

    def compile(self, gm, example_inputs, options):
        with open(os.environ["COMPILED"], "a") as log:
            log.write(f"{os.getpid()} {self.name}\\n")
        return self.make(gm)

class Fast(_Noted):
    name = "fast"
    def make(self, gm):
        return gm.forward

class Twin(Fast):
    name = "twin"

class Wrong(_Noted):
    name = "wrong"
    def make(self, gm):
        for node in gm.graph.find_nodes(op="call_function", target=torch.tanh):
            node.replace_all_uses_with(node.args[0])
        gm.recompile()
        return gm.forward

class Broken(_Noted):
    name = "broken"
    def make(self, gm):
        raise RuntimeError("this compiler has a bug")
"""
_CLASSES = {"fast": "Fast", "twin": "Twin", "wrong": "Wrong", "broken": "Broken"}

_FORKER = """
import json, os, random, signal, sys, time, torch
import agspeed
from agspeed.frontend import startup
from agspeed.frontend.session import session_of
from agspeed.tuning import tuner_config, unfinished
from agspeed.tuning.decision_store import DecisionStore
startup.load_machinery()
make_config = tuner_config.tuner_config
tuner_config.tuner_config = lambda *given, **named: {**make_config(*given, **named), "min_pairs": 190}
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # what follows finds everything imported
str(agspeed.report(agspeed.optimize(torch.nn.Linear(1, 1), mode="off")))
unfinished.SHARE = 1.0  # nothing here may depend on how fast the disk is

@torch.compiler.assume_constant_result
def slow_where_not_captured(seconds):
    time.sleep(seconds)
    return 1.0

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.layer(x)) * slow_where_not_captured(0.0005)  # every captured plan is clearly faster

def steps(cache, count):
    torch.manual_seed(5)
    model = agspeed.optimize(Net(), mode="max", backends=sys.argv[2].split(","), cache_dir=cache)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        yield model

def train_until_killed(cache):
    store = DecisionStore.store_unfinished
    def reporting_store(self, record):
        stored = store(self, record)
        if stored:
            arms = record["unfinished"]["tuner"]["arms"]
            os.write(1, f"{sum(len(arm['pairs']) for arm in arms)} pairs\\n".encode())
        return stored
    DecisionStore.store_unfinished = reporting_store
    for model in steps(cache, 10**6):
        os.write(1, b"step\\n")

def train_on(cache):
    for model in steps(cache, 12):
        pass
    snapshot = session_of(model).tuner_snapshot()
    arms = {arm["name"]: arm for arm in snapshot["arms"]}
    print(json.dumps({
        "resumed": snapshot["resumed_pairs"],
        "decided": snapshot["decision"] is not None,
        "note": snapshot["note"],
        "reasons": {name: arm["reason"] for name, arm in arms.items()},
        "steps": {name: arm["steps"] for name, arm in arms.items()},
        "text": str(agspeed.report(model)),
    }), flush=True)

def in_child(run, cache):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        try:
            run(cache)
        finally:
            os._exit(0)
    os.close(writer)
    return pid, os.fdopen(reader)

for seed in range(int(sys.argv[1])):
    cache = os.path.join(sys.argv[3], str(seed))
    os.environ["COMPILED"] = cache + ".compiled"
    victim, output = in_child(train_until_killed, cache)
    moment = random.Random(seed)
    left, announced = moment.randint(1, 400), []
    for line in output:
        announced += [int(line.split()[0])] if "pairs" in line else []
        left -= line == "step\\n"
        if left == 0:
            break
    time.sleep(moment.uniform(0.0, 0.01))
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    announced += [int(line.split()[0]) for line in output if line.endswith("pairs\\n")]
    print(json.dumps({"seed": seed, "announced": announced}), flush=True)
    input()  # the test looks at what is on disk
    successor, output = in_child(train_on, cache)
    lines = output.read().splitlines()
    os.waitpid(successor, 0)
    print(json.dumps({"successor": successor, **json.loads(lines[-1])}), flush=True)
"""


def _on_disk(cache: Path) -> dict[str, Any]:
    """Returns the unfinished record of a cache whose process was killed. SQLite rolls back a journal left behind."""
    if not (cache / "tuning.sqlite").exists():
        return {"tuner": {"arms": []}, "refusals": []}
    with sqlite3.connect(cache / "tuning.sqlite") as connection:
        rows = connection.execute("SELECT record FROM decisions").fetchall()
    records = [json.loads(text) for (text,) in rows]
    assert all(record["arm"] == "" for record in records), "a killed tuning left a decision"
    return records[0]["unfinished"] if records else {"tuner": {"arms": []}, "refusals": []}


@pytest.mark.slow
def test_a_successor_resumes_with_every_pair_on_disk_and_compiles_nothing_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_ins.install(tmp_path, monkeypatch, _PLUG_INS, _CLASSES)
    command = [sys.executable, "-c", _FORKER, str(NUM_SEEDS), ",".join(_CLASSES), str(tmp_path)]
    num_resumed = num_refused = 0
    # Not torch.set_num_threads: it would make a thread pool, and torch sometimes aborts a fork of a process with one.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as forker:
        assert forker.stdin is not None and forker.stdout is not None
        for seed in range(NUM_SEEDS):
            killed = json.loads(forker.stdout.readline())
            found = _on_disk(tmp_path / str(seed))
            pairs = sum(len(arm["pairs"]) for arm in found["tuner"]["arms"])
            assert pairs >= max(killed["announced"], default=0), f"seed {seed}: {killed} were announced, not {pairs}"
            forker.stdin.write("\n")
            forker.stdin.flush()
            successor = json.loads(forker.stdout.readline())
            shown = f"seed {seed}, {pairs} pairs on disk: {successor}"
            assert successor["resumed"] >= pairs and successor["note"] is None, shown
            refused = {entry["candidate"] for entry in found["refusals"]}
            compiled = (tmp_path / f"{seed}.compiled").read_text().splitlines()
            again = {line.split()[1] for line in compiled if line.split()[0] == str(successor["successor"])}
            assert not refused & again, shown
            assert all(successor["steps"][name] == 0 for name in refused), shown
            assert all("found in an earlier run" in successor["reasons"][name] for name in refused), shown
            if pairs:
                resumed = plural(successor["resumed"], "pair")
                assert f"resumed: {resumed} of an earlier run" in " ".join(successor["text"].split()), shown
            num_resumed += pairs > 0
            num_refused += bool(refused)
        assert forker.wait(timeout=60) == 0
    assert num_resumed >= NUM_SEEDS // 2 and num_refused >= NUM_SEEDS // 2, (num_resumed, num_refused)
