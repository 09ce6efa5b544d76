# SPDX-License-Identifier: Apache-2.0
"""Torch's own tests of Gloo, run over agspeed's backend: a test that passes over Gloo passes here (torch_suite.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from agspeed import native
from tests.python.distributed import torch_suite

BASELINE: dict[str, Any] = json.loads(torch_suite.BASELINE.read_text())

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.skipif(
        torch.__version__ != BASELINE["torch"],
        reason=f"torch's tests were measured over Gloo with torch {BASELINE['torch']}, this is {torch.__version__}: "
        "run python -m tests.python.distributed.torch_suite --record",
    ),
    pytest.mark.slow,
]

#: Test -> group sizes at which it fails over agspeed on purpose, and the reason.
DEVIATIONS: dict[str, tuple[set[int], str]] = {
    "test_monitored_barrier_gloo": (
        {3},
        'the ranks that came look for Gloo\'s "successfully reached monitoredBarrier, but received errors"; '
        "ours tell them who is missing, as rank 0",
    ),
}


def _run(size: int) -> dict[str, dict[str, Any]]:
    """Returns results by name. Runs the suite in a process that may fork."""
    command = [sys.executable, "-m", "tests.python.distributed.torch_suite", f"--ranks={size}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-4000:]
    return {each["name"]: each for each in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("size", torch_suite.SIZES)
def test_what_passes_over_gloo_passes_over_ours(size: int) -> None:
    results = _run(size)
    assert set(results) == set(BASELINE[str(size)])
    meant = {name for name, (sizes, _) in DEVIATIONS.items() if size in sizes}
    failed = [each for each in results.values() if each["outcome"] != "passed" and each["name"] not in meant]
    texts = [f"{each['name']} at {size} ranks: {each['outcome']}\n{each['text']}" for each in failed]
    assert not failed, "\n\n".join([", ".join(each["name"] for each in failed), *texts])
    outdated = [name for name in sorted(meant) if results[name]["outcome"] == "passed"]
    assert not outdated, f"these pass, so take them out of DEVIATIONS: {', '.join(outdated)}"
