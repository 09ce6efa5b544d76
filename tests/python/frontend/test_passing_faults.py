# SPDX-License-Identifier: Apache-2.0
"""A shortage of the machine in one run, such as a full disk, decides nothing for the next run."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.python.frontend import plug_ins
from tests.python.support.scripts import output_of, records

_PLUG_IN = """
import errno, os
from agspeed.backends import Candidate

class Fast(Candidate):
    name = "plug-in-fast"
    in_process = True

    def compile(self, gm, example_inputs, options):
        if "LACKING" in os.environ:
            code = int(os.environ["LACKING"])
            raise OSError(code, os.strerror(code))
        return gm.forward
"""
_SCRIPT = """
import json, sys, time, torch
import agspeed

@torch.compiler.assume_constant_result
def slow_where_not_captured(seconds):
    time.sleep(seconds)
    return 1.0

class SlowInEager(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x) * slow_where_not_captured(0.02)  # every captured plan is clearly faster

torch.manual_seed(5)
model = SlowInEager(torch.nn.Linear(8, 4))
agspeed.optimize(model, mode="max", backends=["plug-in-fast"], cache_dir=sys.argv[1])
for step in range(2000):
    model(torch.randn(4, 8)).square().mean().backward()
    if step > 5 and agspeed.wait(model) != "tuning":
        break
report = agspeed.report(model).to_dict()
print(json.dumps({
    "chosen": report["decision"]["chosen"], "next": report["cost"]["next_run"], "warnings": report["warnings"],
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["ENOSPC", "EACCES"])
def test_a_candidate_that_lacked_something_is_tried_again(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_ins.install(tmp_path, monkeypatch, _PLUG_IN, {"plug-in-fast": "Fast"})
    cache = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setenv("LACKING", str(getattr(errno, lacking)))
        first = output_of(_SCRIPT, cache)
    assert (first["chosen"], first["next"]) == ("eager", "resumes"), first
    assert any("for this run alone" in warning and "plug-in-fast" in warning for warning in first["warnings"]), first
    assert all(record["arm"] == "" for record in records(cache)), "no decision is stored"
    second = output_of(_SCRIPT, cache)
    assert (second["chosen"], second["next"]) == ("plug-in-fast", "decided"), second
