# SPDX-License-Identifier: Apache-2.0
"""Interfaces that lose their carrier while ranks use several connections over each of them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agspeed import native
from tests.fault.conftest import MakeNetbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]

PROGRAMS = Path(__file__).parent / "liveness_programs.py"
RAILS, FLOWS = 2, 4
REPORTED = re.compile(r"rail (\d+) .* to rank 0 \(.*\): the peer's interface has no carrier")


def await_that(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_peers_learn_of_all_connections_over_an_interface(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2, rails=RAILS)
    lines: list[tuple[int, str]] = []
    bed.start(
        [sys.executable, str(PROGRAMS), "sums_for_ever"],
        env={"AGSPEED_DEBUG": "info", "AGSPEED_FLOWS_PER_INTERFACE": str(FLOWS), "OMP_NUM_THREADS": "1"},
        on_line=lambda host, line: lines.append((host, line)),
    )
    assert await_that(lambda: {0, 1} <= {host for host, line in lines if line.startswith("ready")}, 120), lines
    time.sleep(1)  # by then all rails carry data

    def reported() -> set[int]:
        return {int(found[1]) for host, line in lines if host == 1 and (found := REPORTED.search(line))}

    bed.hosts[0].rails[0].down("switch")
    assert await_that(lambda: reported() == set(range(0, RAILS * FLOWS, RAILS)), 60), (reported(), lines)
