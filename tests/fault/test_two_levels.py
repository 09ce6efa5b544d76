# SPDX-License-Identifier: Apache-2.0
"""Several ranks per host: how many bytes leave a host, counted on its interfaces."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.fault.conftest import MakeNetbed

PROGRAM = Path(os.environ.get("AGSPEED_BUILD_DIR", "build/dev")) / "comm/examples/all_reduce"
ROUNDS, BYTES = 60, 1_000_000  # the program sums a buffer of 250,000 f32 in each round
OVERHEAD = 0.05  # headers, acknowledgements and connecting

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built"),
]
THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("sizes", "buffers"),
    [
        ((4, 3), 1.0),
        ((6, 6), 1.5),
        pytest.param((8, 7), 1.0, marks=THOROUGH),
        pytest.param((8, 8), 1.0, marks=THOROUGH),
        pytest.param((5, 3, 2), 2.0, marks=THOROUGH),
        pytest.param((8, 8, 8, 8), 1.5, marks=THOROUGH),
    ],
)
def test_a_host_sends_a_sum_once_per_subtree_of_its_ranks(
    make_netbed: MakeNetbed, sizes: tuple[int, ...], buffers: float
) -> None:
    """Without local groups, each of two hosts with 8 and 7 ranks would send 7.5 buffers."""
    bed = make_netbed(hosts=len(sizes), rails=1)
    folder = bed.scratch / "store"
    folder.mkdir(mode=0o700)
    before = bed.counters()
    ranks = itertools.count()
    jobs = [
        bed.start(
            [str(PROGRAM), str(next(ranks)), str(sum(sizes)), str(folder), str(ROUNDS)],
            env={"AGSPEED_SOCKET_IFNAME": bed.hosts[host].rails[0].name},
            hosts=[host],
        )
        for host, size in enumerate(sizes)
        for _ in range(size)
    ]
    outcomes = [outcome for job in jobs for outcome in job.wait(120)]
    assert all(outcome.code == 0 for outcome in outcomes), "\n".join(outcome.output for outcome in outcomes)
    pairs = zip(bed.counters(), before, strict=True)
    sent = [now[0].since(then[0]).sent_bytes / (ROUNDS * BYTES) for now, then in pairs]
    print(f"{sizes} ranks: buffers that left each host in an all-reduce: {[round(each, 3) for each in sent]}")
    assert max(sent) <= buffers + OVERHEAD, sent
