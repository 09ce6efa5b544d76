# SPDX-License-Identifier: Apache-2.0
"""NCCL's network tables between two hosts: one connection over several rails, with and without faults.

The tables are called as NCCL calls them, on host memory only. NCCL's own socket table is the control if NCCL is
installed.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

import pytest

from agspeed import nccl, netbed
from benchmarks.comm import nccl_faults, nccl_programs
from tests.fault.conftest import MakeNetbed

WAY = nccl_programs.find(nccl_programs.OURS)
OURS, NCCL_SOCKET = 11, 0  # versions of tables
LIMIT_S = 60
OPERATIONS = 200  # with each fault


def why_not() -> str | None:
    """Returns why none of these tests can run, or None."""
    try:
        nccl_programs.program("pair")
        nccl_programs.library(WAY)
    except RuntimeError as error:
        return str(error)
    return None


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


class Pair:
    """Operations from host 0 to host 1 for some seconds, each compared byte by byte."""

    def __init__(
        self,
        bed: netbed.Netbed,
        table: int,
        num_bytes: int,
        messages: int,
        seconds: float,
        operations: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> None:
        library = nccl_programs.library(WAY) if table == OURS else nccl.find_nccl()
        self._lines: dict[int, dict[str, Any]] = {}
        rails = ",".join(rail.name for rail in bed.hosts[0].rails)
        words = [str(bed.scratch / f"peer{table}"), str(library), table, 1, num_bytes, messages, seconds, operations, 1]
        self._jobs = [
            bed.start(
                [str(nccl_programs.program("pair")), role, *map(str, words)],
                env={"AGSPEED_SOCKET_IFNAME": rails, "NCCL_SOCKET_IFNAME": rails, **(env or {})},
                hosts=[host],
                on_line=self._on_line,
            )
            for host, role in enumerate(("send", "receive"))
        ]

    def _on_line(self, host: int, line: str) -> None:
        if line.startswith("{"):
            self._lines[host] = json.loads(line)

    def end(self) -> tuple[list[float], int]:
        """Returns the seconds of each operation and the number of wrong bytes."""
        outcomes = self.outcomes()
        shown = "\n".join(f"host {outcome.host}:\n{outcome.output}" for outcome in outcomes)
        assert all(outcome.code == 0 for outcome in outcomes), shown
        return self._lines[0]["seconds"], self._lines[1]["wrong_bytes"]

    def outcomes(self) -> list[netbed.Outcome]:
        return [outcome for job in self._jobs for outcome in job.wait(LIMIT_S)]

    def is_wrong(self) -> bool:
        """True if bytes arrived wrong, or so wrong that an end failed."""
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
    """The link stays cut to the end. In one of the cases the connection was set up over it."""
    bed = make_netbed(hosts=2, rails=2, rate="200mbit")
    least = 30  # operations: more than both rails can carry before the cut
    pair = Pair(bed, OURS, 4 << 20, 4, 3, least)
    time.sleep(1.5)
    bed.hosts[1].rails[rail].down()
    seconds, wrong = pair.end()
    assert wrong == 0
    assert len(seconds) >= least


def test_a_device_of_one_interface_goes_on_over_others(make_netbed: MakeNetbed) -> None:
    """Small operations use the device's own interface until its link is cut.

    Other interfaces help when the processes have to wait for a core, so the shares are counted in short intervals.
    """
    bed = make_netbed(hosts=2, rails=2)
    pair = Pair(bed, OURS, 8_000, 1, 6, env={"AGSPEED_NCCL_DEVICES": "nic"})
    shares = []
    for _ in range(25):
        before = bed.counters()[0]
        time.sleep(0.1)
        own, other = [now.since(then).sent_bytes for now, then in zip(bed.counters()[0], before, strict=True)]
        if own + other > 100_000:
            shares.append(own / (own + other))
    bed.hosts[1].rails[0].down()
    time.sleep(1.0)
    cut = bed.counters()[0][1].sent_bytes
    _, wrong = pair.end()
    after = bed.counters()[0][1].sent_bytes
    assert wrong == 0
    assert len(shares) > 5 and statistics.median(shares) > 0.8, shares
    assert after > cut + 30_000, (cut, after)


@pytest.mark.parametrize("fault", [name for name in nccl_faults.FAULTS if name != "none"])
def test_failing_links_change_no_byte_and_end_nothing(make_netbed: MakeNetbed, fault: str) -> None:
    """A random rail fails and recovers again and again, at either end, visibly or silently."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"{fault}, seed {seed}")
    bed = make_netbed(hosts=2, rails=4, rate="250mbit")
    outcome = nccl_faults.run(bed, nccl_faults.FAULTS[fault], 1 << 20, OPERATIONS, seed, {})
    assert outcome.wrong_bytes == 0
    assert len(outcome.seconds) >= OPERATIONS
    assert outcome.strikes > 0


def _wait_for_bytes(bed: netbed.Netbed, num_bytes: int) -> None:
    """Waits until host 1 has received this number of bytes from now on."""
    begin, deadline = bed.counters()[1], time.monotonic() + LIMIT_S
    received = 0
    while received < num_bytes and time.monotonic() < deadline:
        time.sleep(0.05)
        received = sum(now.since(then).received_bytes for now, then in zip(bed.counters()[1], begin, strict=True))
    assert received >= num_bytes


def test_flipped_bytes_do_not_arrive(make_netbed: MakeNetbed) -> None:
    """Bytes flip while messages flow. A flipped byte of a hello or a farewell would end the channel with an error."""
    if reason := netbed.corruption_unavailable():
        pytest.skip(reason)
    bed = make_netbed(hosts=2, rails=2, rate="200mbit")
    for rail in bed.hosts[1].rails:  # the first time compiles the fault, which can take seconds
        rail.corrupt("in", 200)
        rail.heal()
    least = 400  # operations: more than both rails can carry until they heal
    pair = Pair(bed, OURS, 1 << 19, 4, 2, least)
    _wait_for_bytes(bed, 4 << 20)
    for rail in bed.hosts[1].rails:
        rail.corrupt("in", 200)
    _wait_for_bytes(bed, 64 << 20)
    for rail in bed.hosts[1].rails:
        rail.heal()
    seconds, wrong = pair.end()
    assert wrong == 0
    assert len(seconds) >= least
    if nccl.find_nccl() is None:
        pytest.skip("the control needs NCCL, which is not installed")
    for rail in bed.hosts[1].rails:
        rail.corrupt("in", 200)
    assert Pair(bed, NCCL_SOCKET, 8 << 20, 8, 2).is_wrong()
