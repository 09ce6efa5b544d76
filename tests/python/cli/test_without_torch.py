# SPDX-License-Identifier: Apache-2.0
"""The command line if torch and the native extension cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agspeed
from tests.python.support.without_torch import BLOCKER


@pytest.fixture
def run(tmp_path):
    """Runs `agspeed ...` in a process that, like its children, has no torch."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    path = os.pathsep.join([str(tmp_path), str(Path(agspeed.__file__).parents[1])])

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agspeed", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)

    return run


def test_doctor_says_that_torch_is_missing_and_what_to_do(run):
    done = run("doctor", "--json")
    assert done.returncode == 1, done.stderr
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["torch"]["status"] == "fail"
    assert found["torch"]["remedy"] == "pip install 'torch>=2.11'"
    assert found["python"]["status"] == "ok"
    assert "torch" not in json.loads(done.stdout)["versions"]


def test_a_bug_report_says_why_torch_cannot_be_used(run):
    done = run("doctor", "--report", "-")
    assert (done.returncode, done.stderr) == (1, "")
    assert "torch             not installed" in done.stdout and "fail  torch" in done.stdout
    assert "not all facts" not in done.stdout


def test_everything_else_works(run, report_file, cache):
    for arguments in (
        ("--version", "--verbose"),
        ("config",),
        ("report", "show", report_file),
        ("report", "html", report_file),
        ("report", "compare", report_file, report_file),
        ("cache", "--cache-dir", cache, "ls"),
        ("cache", "--cache-dir", cache, "verify"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert done.stdout
