# SPDX-License-Identifier: Apache-2.0
"""Two ranks in lockstep: both have done every step that one of them measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agspeed import native

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

ROOT = Path(__file__).parents[3]


def measured(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns what a worker measures. The worker is a process of its own, because this one may have a group already."""
    given, written = folder / "spec.json", folder / "result.json"
    given.write_text(json.dumps(spec))
    command = [sys.executable, "-m", "benchmarks.worker", str(given), str(written)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "python"), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": paths, "AGSPEED_SOCKET_IFNAME": "lo"}
    worker = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert worker.returncode == 0, worker.stderr
    result: dict[str, Any] = json.loads(written.read_text())
    return result


@pytest.mark.slow
def test_a_settled_session_in_a_group_is_compared_with_one_alone(tmp_path: Path) -> None:
    limits = {"min_pairs": 2, "max_pairs": 4, "seconds": 5.0, "block_seconds": 0.001}
    spec: dict[str, Any] = {
        "case": {"kind": "overhead", "workload": "tiny_mlp", "part": "group"},
        "candidates": ["agspeed-eager"],
        "cache_dir": str(tmp_path),
        "threads": 1,
        "settings": {"limits": limits, "settle_seconds": 200},
    }
    cell = measured(spec, tmp_path)
    row = cell["candidates"]["agspeed-eager"]
    assert row["status"] == "timed"
    assert row["chosen"] == {"model": "eager"}
    assert row["extra_us"]["low"] <= row["extra_us"]["value"] <= row["extra_us"]["high"]
    assert cell["control"]["reference_ms"] > 0
