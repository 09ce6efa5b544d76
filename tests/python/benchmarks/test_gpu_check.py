# SPDX-License-Identifier: Apache-2.0
"""The command that tries agspeed on a GPU, on a machine without one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agspeed.devices import driver
from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check.parts import MINUTES, PARTS, Part


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "benchmarks.gpu_check", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(not driver.look().why_none, reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_ends_with_3(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "out"))
    assert done.returncode == 3 and "no NVIDIA driver" in done.stderr, done
    assert not (tmp_path / "out").exists()


def test_a_dry_run_lists_parts_that_fit_into_ten_minutes() -> None:
    done = run("--dry-run")
    limits = {name: int(seconds) for name, seconds in re.findall(r"^(\w+) +(\d+) s", done.stdout, re.MULTILINE)}
    assert done.returncode == 0 and limits.pop("together") == sum(limits.values()) <= 60 * MINUTES
    assert list(limits) == [part.name for part in PARTS]


def test_every_part_can_be_loaded() -> None:
    assert all(callable(part.load()) for part in PARTS)


def test_results_are_written_after_each_part_and_failures_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[list[str]] = []

    def found(part: Part, limit_s: float) -> dict[str, Any]:
        results = tmp_path / "results.json"
        written.append(list(json.loads(results.read_text())["parts"]) if results.exists() else [])
        return {"holds": part.name != "gate", "why": "accepted: ['scaled']"}

    monkeypatch.setattr(command, "run_part", found)
    assert command.run_all(tmp_path, 1.0) == 1
    assert written[2] == [part.name for part in PARTS[:2]]
    monkeypatch.setattr(command, "run_part", lambda part, limit_s: {"holds": True})
    assert command.run_all(tmp_path, 1.0) == 0


def test_a_part_that_crashes_is_a_finding() -> None:
    crashed = command.run_part(Part("no such part", "", 1, ""), 30)
    assert not crashed["holds"] and "ended with code" in crashed["why"]


def test_a_part_that_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", _times_out)
    assert "took longer than 7 s" in command.run_part(PARTS[0], 7)["why"]


def _times_out(*arguments: Any, timeout: float, **keywords: Any) -> None:
    raise subprocess.TimeoutExpired("part", timeout)
