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

BLOCKER = """
import importlib.abc, importlib.metadata, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch" or name == "agspeed._native":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
original = importlib.metadata.version
def version(package):
    if package == "torch":
        raise importlib.metadata.PackageNotFoundError(package)
    return original(package)
importlib.metadata.version = version
"""


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
