# SPDX-License-Identifier: Apache-2.0
"""Several ranks on each host: data that the ranks share leave the host once, and results keep their bits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agspeed import native, netbed
from tests.fault.conftest import MakeNetbed
from tests.python.support.pairs import first_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]

PROGRAM = Path(__file__).parent / "blocks_program.py"
HOSTS, PER_HOST, LIMIT_S = 2, 2, 120


def run(bed: netbed.Netbed, dtype: str, **environment: str) -> tuple[float, list[str]]:
    """Returns the number of buffers that have left host 0, and the digest of each rank's results."""
    before = bed.counters()
    lines: list[dict[str, Any]] = []
    jobs = [
        bed.start(
            [sys.executable, str(PROGRAM), dtype],
            env={
                "RANK": str(rank),
                "WORLD_SIZE": str(HOSTS * PER_HOST),
                "OMP_NUM_THREADS": "1",
                "AGSPEED_WIRE_CODING": "off",
                **environment,
            },
            hosts=[rank // PER_HOST],
            on_line=lambda _, line: lines.append(json.loads(line)) if line.startswith("{") else None,
        )
        for rank in range(HOSTS * PER_HOST)
    ]
    for job in jobs:
        for outcome in job.wait(LIMIT_S):
            assert outcome.code == 0, outcome.output
    assert len(lines) == HOSTS * PER_HOST
    sent = sum(now.since(then).sent_bytes for now, then in zip(bed.counters()[0], before[0], strict=True))
    return sent / lines[0]["buffer_bytes"], [line["digest"] for line in lines]


@pytest.mark.parametrize("dtype", first_of(["bfloat16", "float32"], 1))
def test_a_host_sends_once_what_its_ranks_have_in_common(make_netbed: MakeNetbed, dtype: str) -> None:
    """The program does three all-reduces, an all-gather and a reduce-scatter of one buffer. Codes make it less."""
    bed = make_netbed(hosts=HOSTS, rails=2, rate="400mbit")
    sent, digests = run(bed, dtype)
    apart, others = run(bed, dtype, AGSPEED_SHARED_MEMORY="0")  # so ranks do not know which hosts they share
    coded, of_codes = run(bed, dtype, AGSPEED_WIRE_CODING="on")
    assert len({*digests, *others, *of_codes}) == 1, (digests, others, of_codes)
    wide = {"float32": 1, "bfloat16": 2}[dtype]  # width of reduced values, relative to the buffer's
    # For bfloat16 the reduce-scatter goes directly between ranks.
    expected = 3 * (wide + 1) / HOSTS + 1 / HOSTS + wide / HOSTS
    assert expected <= sent < 1.1 * expected
    assert apart >= 3 * 2 + 1 + 1
    assert coded < 0.92 * sent
