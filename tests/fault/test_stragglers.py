# SPDX-License-Identifier: Apache-2.0
"""A rail that becomes slow while ranks train is named, with its host and what is left of its rate."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agspeed import native
from tests.fault.conftest import MakeNetbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]

PROGRAM = Path(__file__).parent / "straggler_program.py"
TRAINS_S, LIMIT_S = 90, 180


def test_a_rail_that_is_shaped_down_is_named(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=3, rails=2, rate="100mbit")
    lines: list[dict[str, Any]] = []

    def on_line(_: int, line: str) -> None:
        if line.startswith("{"):
            lines.append(json.loads(line))
            if "ready" in lines[-1]:
                bed.hosts[1].rails[1].set_rate("30mbit")

    environment = {"OMP_NUM_THREADS": "1", "AGSPEED_COMPARE_RANKS_S": "0.5", "AGSPEED_WIRE_CODING": "off"}
    job = bed.start([sys.executable, str(PROGRAM), str(TRAINS_S)], env=environment, on_line=on_line)
    outcomes = job.wait(LIMIT_S)
    for outcome in outcomes:
        assert outcome.code == 0, outcome.output
    found = [(finding["kind"], finding["rank"], finding["rail"]) for finding in lines[-1]["lasting"]]
    assert found == [("rail", 1, "rail1")], (lines, [outcome.output for outcome in outcomes])
