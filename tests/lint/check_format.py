# SPDX-License-Identifier: Apache-2.0
"""Checks formatting, ruff's rules and types with the tool versions pinned in .ci/requirements.txt. `make format`
repairs the first two."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.lint import sources

TOOLS = Path(sys.executable).parent
RUFF = str(TOOLS / "ruff")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=sources.ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def python_paths() -> list[str]:
    return [path for path in sources.python_files() if not path.endswith("lit.cfg.py")]


@pytest.mark.parametrize("tool", ["clang-format", "mypy", "ruff"])
def test_the_tools_have_their_pinned_version(tool: str) -> None:
    pinned = re.search(rf"^{tool}==(\S+)$", sources.read(".ci/requirements.txt"), re.M)
    assert pinned is not None
    assert version(tool) == pinned.group(1), "run make setup"


def test_cpp_is_formatted() -> None:
    result = run(str(TOOLS / "clang-format"), "--dry-run", *sources.cpp_files())
    unformatted = sorted(set(re.findall(r"^(\S+?):\d+:\d+: warning", result.stderr, re.M)))
    assert not unformatted, "run make format for:\n" + "\n".join(unformatted)
    assert result.returncode == 0, result.stderr


def test_python_is_formatted() -> None:
    result = run(RUFF, "format", "--check", "--quiet", "--diff", *python_paths())
    unformatted = sorted(set(re.findall(r"^--- (\S+)", result.stdout + result.stderr, re.M)))
    assert result.returncode == 0, "run make format for:\n" + "\n".join(unformatted) + result.stderr[-2000:]


def test_python_follows_the_rules() -> None:
    result = run(RUFF, "check", "--output-format", "concise", *python_paths())
    assert result.returncode == 0, "\n" + result.stdout + result.stderr


def test_the_package_is_typed() -> None:
    newest = sources.read(".ci/torch-versions.txt").split("\n")[-2].split()[1]
    if not version("torch").startswith(newest):
        pytest.skip(f"the annotations of torch {newest} are the measure: releases differ in them")
    cache = sources.ROOT / "build" / "mypy"
    result = run(sys.executable, "-m", "mypy", "--cache-dir", str(cache), "--no-error-summary")
    assert result.returncode == 0, "\n" + result.stdout + result.stderr
