# SPDX-License-Identifier: Apache-2.0
"""NCCL's network tables between two hosts: one connection over several rails, and what faults do to it.

Host memory only, as NCCL uses such tables; NCCL's own socket table runs beside ours where it is there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from agspeed import nccl, netbed
from tests.fault.conftest import MakeNetbed
from tests.lint import sources

BUILD = Path(os.environ.get("AGSPEED_BUILD_DIR", sources.ROOT / "build" / "dev"))
PAIR = BUILD / "tests" / "comm" / "nccl_net" / "comm_nccl_net_pair"
PLUGIN = next((path for path in (nccl.library(), BUILD / "comm/nccl_net" / nccl.library().name) if path.exists()), None)
OURS, NCCL_SOCKET = 11, 0  # tables
LIMIT_S = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PAIR.exists() or PLUGIN is None, reason=f"{PAIR} or the plug-in is not built"),
]


class Pair:
    """Operations from host 0 to host 1, each compared byte by byte, for some seconds."""

    def __init__(self, bed: netbed.Netbed, table: int, num_bytes: int, messages: int, seconds: float) -> None:
        library = PLUGIN if table == OURS else nccl.find_nccl()
        self._lines: dict[int, dict[str, Any]] = {}
        rails = ",".join(rail.name for rail in bed.hosts[0].rails)
        words = [str(bed.scratch / f"meet{table}"), str(library), table, 1, num_bytes, messages, seconds, 1]
        self._jobs = [
            bed.start(
                [str(PAIR), role, *map(str, words)],
                env={"AGSPEED_SOCKET_IFNAME": rails, "NCCL_SOCKET_IFNAME": rails},
                hosts=[host],
                on_line=self._on_line,
            )
            for host, role in enumerate(("send", "receive"))
        ]

    def _on_line(self, host: int, line: str) -> None:
        if line.startswith("{"):
            self._lines[host] = json.loads(line)

    def end(self) -> tuple[list[float], int]:
        """Seconds of each operation, and how many bytes came wrong."""
        for outcome in self.outcomes():
            assert outcome.code == 0, outcome.output
        return self._lines[0]["seconds"], self._lines[1]["wrong_bytes"]

    def outcomes(self) -> list[netbed.Outcome]:
        return [outcome for job in self._jobs for outcome in job.wait(LIMIT_S)]

    def is_wrong(self) -> bool:
        """Whether bytes came wrong, or such as no end could make sense of."""
        return any(outcome.code != 0 for outcome in self.outcomes()) or self._lines[1]["wrong_bytes"] > 0


def test_one_connection_is_striped_over_all_rails(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2, rails=4, rate="100mbit")
    before = bed.counters()[0]
    seconds, wrong = Pair(bed, OURS, 4 << 20, 4, 1.5).end()
    sent = [now.since(then).sent_bytes for now, then in zip(bed.counters()[0], before, strict=True)]
    assert wrong == 0
    assert sum(sent) > len(seconds) * (4 << 20)
    assert min(sent) > 0.1 * sum(sent), sent


@pytest.mark.parametrize("rail", [0, 1])
def test_a_cut_link_changes_no_byte_and_ends_nothing(make_netbed: MakeNetbed, rail: int) -> None:
    """It stays cut to the end, also where the connection was set up over it."""
    bed = make_netbed(hosts=2, rails=2, rate="200mbit")
    pair = Pair(bed, OURS, 4 << 20, 4, 3)
    time.sleep(1.5)
    bed.hosts[1].rails[rail].down()
    seconds, wrong = pair.end()
    assert wrong == 0
    assert len(seconds) > 5


def test_a_silent_and_a_flapping_rail_change_no_byte_and_end_nothing(make_netbed: MakeNetbed) -> None:
    bed = make_netbed(hosts=2, rails=2, rate="200mbit")
    pair = Pair(bed, OURS, 4 << 20, 4, 5)
    time.sleep(1.2)
    bed.hosts[1].rails[0].drop("in")  # its carrier stays, as behind a switch that fails
    time.sleep(1.2)
    bed.hosts[1].rails[0].heal()
    for _ in range(3):
        bed.hosts[0].rails[1].down()
        time.sleep(0.2)
        bed.hosts[0].rails[1].up()
        time.sleep(0.3)
    seconds, wrong = pair.end()
    assert wrong == 0
    assert len(seconds) > 5


def test_flipped_bytes_do_not_arrive(make_netbed: MakeNetbed) -> None:
    if reason := netbed.corruption_unavailable():
        pytest.skip(reason)
    bed = make_netbed(hosts=2, rails=2)
    for rail in bed.hosts[1].rails:
        rail.corrupt("in", 200)
    _, wrong = Pair(bed, OURS, 8 << 20, 8, 2).end()
    assert wrong == 0
    if nccl.find_nccl() is None:
        pytest.skip("the control needs NCCL, which is not installed")
    assert Pair(bed, NCCL_SOCKET, 8 << 20, 8, 2).is_wrong()
