# SPDX-License-Identifier: Apache-2.0
"""Part "memory" of a case: the memory of ranks during steps of DistributedOptimizer, and its growth."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.comm import sizes as message_sizes
from benchmarks.comm.contest import Contest
from benchmarks.comm.sides import OURS

_PARTS = 10
_SETTLING = 100  # steps before the first reading


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Runs the steps in tenths and stops after the tenth in which `seconds` run out. `sizes` do not apply."""
    team, share = contest.teams[OURS], 1 / len(case["layers"])
    layers = [([message_sizes.parse(size)] * count, share) for count, size in case["layers"]]
    team.ask("horovod.ranks.open_session", way="horovod", layers=layers, bucket_mb=0, forward=0.0)
    readings = [team.ask("horovod.ranks.steps_of", count=_SETTLING)]
    deadline = time.monotonic() + seconds
    while len(readings) <= _PARTS and (len(readings) == 1 or time.monotonic() < deadline):
        readings.append(team.ask("horovod.ranks.steps_of", count=case["steps"] // _PARTS))
    return {"memories": [{"side": OURS, **row(readings, case["steps"] // _PARTS)}]}


def row(readings: Sequence[Sequence[Mapping[str, int]]], part: int) -> dict[str, Any]:
    """The row of a case. `readings` holds one reading of all ranks after another, `part` steps apart. Growth is
    relative to the first reading; the rank that grew most counts.
    """
    growths = [
        last["resident_bytes"] / first["resident_bytes"] - 1
        for first, last in zip(readings[0], readings[-1], strict=True)
    ]
    keys = ("fusion_buffers", "fusion_buffer_bytes", "max_fusion_buffer_bytes")
    return {
        "steps": part * (len(readings) - 1),
        "resident_mib": [max(each["resident_bytes"] for each in reading) / (1 << 20) for reading in readings],
        "growth": max(growths),
        **{key: max(each[key] for each in readings[-1]) for key in keys},
    }
