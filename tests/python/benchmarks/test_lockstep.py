# SPDX-License-Identifier: Apache-2.0
"""Two ranks in lockstep: both have done every step that one of them measures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from benchmarks.kinds import overhead

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.mark.slow
def test_a_settled_session_in_a_group_is_compared_with_one_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGSPEED_SOCKET_IFNAME", "lo")
    limits = {"min_pairs": 2, "max_pairs": 4, "seconds": 5.0, "block_seconds": 0.001}
    spec: dict[str, Any] = {
        "case": {"workload": "tiny_mlp", "part": "group"},
        "candidates": ["agspeed-eager"],
        "cache_dir": str(tmp_path),
        "cores": sorted(os.sched_getaffinity(0)),
        "settings": {"limits": limits, "settle_seconds": 200},
    }
    affinity, threads = os.sched_getaffinity(0), torch.get_num_threads()
    try:
        cell = overhead.measure(spec)
    finally:
        os.sched_setaffinity(0, affinity)
        torch.set_num_threads(threads)
    row = cell["candidates"]["agspeed-eager"]
    assert row["status"] == "timed"
    assert row["chosen"] == {"model": "eager"}
    assert row["extra_us"]["low"] <= row["extra_us"]["value"] <= row["extra_us"]["high"]
    assert cell["control"]["reference_ms"] > 0
