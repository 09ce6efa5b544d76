# SPDX-License-Identifier: Apache-2.0
"""Paths that pass small packets and drop large ones, as a switch with a wrong MTU does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agspeed import native
from tests.fault.conftest import MakeNetbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]

PROGRAM = Path(__file__).parent / "blocks_program.py"
LIMIT_S = 120


@pytest.mark.parametrize("rails", [1, 2])
def test_a_rail_that_loses_large_packets_is_used_with_small_ones(make_netbed: MakeNetbed, rails: int) -> None:
    bed = make_netbed(hosts=2, rails=rails, mtu=9000, rate="200mbit")  # so the blocks take longer than two stalls
    for host in bed.hosts:
        host.rails[-1].drop_larger_than(1500)
    jobs = [
        bed.start(
            [sys.executable, str(PROGRAM), "float32"],
            env={"RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "AGSPEED_DEBUG": "info"},
            hosts=[rank],
        )
        for rank in range(2)
    ]
    for job in jobs:
        for outcome in job.wait(LIMIT_S):
            assert outcome.code == 0, outcome.output
            assert f"rail {rails - 1}" in outcome.output and "no large frame has ever arrived" in outcome.output
    carried = [rail.sent_bytes for rail in bed.counters()[0]]
    assert all(sent > 1 << 20 for sent in carried), carried
