# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while training waits for a compile: one line says what is kept, and the traceback shows only the user's
code."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import agspeed
from tests.python.frontend import plug_ins

_PLUG_INS = """
import os, time
from agspeed.backends import Candidate

class Broken(Candidate):
    name = "broken"
    in_process = True
    def compile(self, gm, example_inputs, options):
        raise RuntimeError("this compiler has a bug")

class StuckHere(Candidate):
    name = "stuck-here"
    in_process = True
    def compile(self, gm, example_inputs, options):
        open(os.environ["COMPILING"], "w").close()
        time.sleep(600)

class StuckInChild(StuckHere):
    name = "stuck-in-child"
    in_process = False
"""
_TRAIN = """
import signal, sys, torch, agspeed
from agspeed.tuning import tuner_config

make_config = tuner_config.tuner_config

def one_at_a_time(*given, **named):  # steps and compiles take turns, and the compile's turn lasts until the signal
    return {**make_config(*given, **named), "has_spare_cores": False, "max_pause_seconds": 600.0}

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs in the background without it
tuner_config.tuner_config = one_at_a_time
model = torch.nn.Linear(4, 4)
agspeed.optimize(model, mode="max", backends=["broken", sys.argv[1]], cache_dir=sys.argv[2])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()  # the user's line
"""


@pytest.mark.slow
@pytest.mark.parametrize("stuck", ["stuck-here", "stuck-in-child"])
def test_ctrl_c_in_a_compile_keeps_what_is_known_and_shows_no_frame_of_ours(
    stuck: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = {"broken": "Broken", "stuck-here": "StuckHere", "stuck-in-child": "StuckInChild"}
    plug_ins.install(tmp_path, monkeypatch, _PLUG_INS, classes)
    monkeypatch.setenv("COMPILING", str(tmp_path / "compiling"))
    (tmp_path / "train.py").write_text(_TRAIN)
    command = [sys.executable, str(tmp_path / "train.py"), stuck, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
        deadline = time.monotonic() + 300
        while not (tmp_path / "compiling").exists() and training.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        training.send_signal(signal.SIGINT)
        try:
            _, text = training.communicate(timeout=120)
        finally:
            training.kill()
    assert training.returncode == -signal.SIGINT, text
    assert "0 pairs and 1 refused candidate kept, with which the next run resumes" in text, text
    assert text.count("interrupted while tuning") == 1 and text.rstrip().endswith("KeyboardInterrupt"), text
    assert "optimizer.step()  # the user's line" in text, text
    assert os.path.dirname(agspeed.__file__) + os.sep not in text.partition("Traceback")[2], text
    with sqlite3.connect(tmp_path / "cache" / "tuning.sqlite") as connection:
        (record,) = connection.execute("SELECT record FROM decisions").fetchone()
    assert [entry["candidate"] for entry in json.loads(record)["unfinished"]["refusals"]] == ["broken"]
