# SPDX-License-Identifier: Apache-2.0
"""Runs every fault scenario a few times: results are bit-equal, nothing hangs, and only the expected errors occur.

`python -m tests.fault.scenarios` runs them more often and measures; see README.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agspeed import native, netbed
from tests.fault.scenarios.rows import SCENARIOS
from tests.python.support.pairs import first_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]

ROOT = Path(__file__).parents[2]
COUNT = 2
LIMIT_S = 280


@pytest.mark.parametrize("row", first_of(sorted({scenario.row for scenario in SCENARIOS}), 1))
def test_a_fault_costs_neither_a_byte_nor_a_hang(row: str, tmp_path: Path) -> None:
    reason = netbed.unavailable()
    if reason:
        pytest.skip(reason)
    path = tmp_path / "results.json"
    # A process of its own, because ranks are forked from it and it must have a single thread.
    command = [sys.executable, "-m", "tests.fault.scenarios", "--count", str(COUNT), "--row", row, "--json", str(path)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as runner:
        try:
            output, _ = runner.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            runner.terminate()  # which also removes its bed
            pytest.fail(f"not done after {LIMIT_S} s:\n{runner.communicate()[0]}")
    print(output)
    found = json.loads(path.read_text())["rows"]
    assert found, output
    for result in found:
        assert "skipped" in result or result["is_good"], output
    assert runner.returncode == 0, output
    if all("skipped" in result for result in found):
        pytest.skip(found[0]["skipped"])
