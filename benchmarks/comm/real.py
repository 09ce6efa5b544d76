# SPDX-License-Identifier: Apache-2.0
"""Part "real" of a case: real steps of workloads, with their compute, on one core for each rank.

The workloads are wrapped in DistributedDataParallel, or in another `wrapper` that the case names. A way is how the
model is compiled (`wrapped.py`); a side is the backend. Communication takes cycles of the cores that compute, so
overlap is not measured here. A row compares a step with eager's, and with the better of eager's and torch.compile's
over the same backend, in blocks that take turns. If a case has the side "agspeed-coded", its rows also compare a step
with the same way's over "agspeed".
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.comm import sides
from benchmarks.comm.blocks import Block
from benchmarks.comm.contest import Contest
from benchmarks.measure.statistics import median_estimate

EAGER, OURS = "eager", "agspeed"
_CODED = "agspeed-coded"
_BLOCK_STEPS = 4


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Times each workload for `seconds`. `sizes` do not apply."""
    rows = []
    limits = {"seconds": case["tuning_seconds"], "wrapper": case.get("wrapper", "DistributedDataParallel")}
    for workload in case["workloads"]:
        opened = {
            (side, way): team.ask("wrapped.open_way", way=way, workload=workload, **limits)[0]
            for side, team in contest.teams.items()
            for way in case["ways"]
        }
        found = contest.take_turns({key: _action(contest, *key) for key in opened}, seconds)
        for (side, way), settled in opened.items():
            described = {"workload": workload, "side": side, "way": way, **settled}
            row = described | _row({other: found[side, other] for other in case["ways"]}, way)
            if _CODED in contest.teams:
                row["over_uncoded"] = _speed(_seconds(found[side, way]), _seconds(found[sides.OURS, way]))
            rows.append(row)
        for team in contest.teams.values():
            team.ask("wrapped.close_ways")
    return {"reals": rows}


def _action(contest: Contest, side: str, way: str) -> Callable[[], Block]:
    return lambda: contest.teams[side].block("wrapped.steps", way=way, count=_BLOCK_STEPS)


def _row(found: Mapping[str, Sequence[Block]], way: str) -> dict[str, Any]:
    """The row of one way. `found` holds the blocks of one side, by way."""
    seconds = {other: _seconds(blocks) for other, blocks in found.items()}
    others = [other for other in found if other not in (OURS, way)]
    best = min(others or [way], key=lambda other: median_estimate(seconds[other]).value)
    return {
        "seconds": median_estimate(seconds[way]).to_dict(),
        "over_eager": _speed(seconds[way], seconds[EAGER]),
        "best_other": best,
        "over_best_other": _speed(seconds[way], seconds[best]),
        "cpu_seconds": statistics.fmean(block.cpu_seconds_per_operation for block in found[way]),
    }


def _seconds(blocks: Sequence[Block]) -> list[float]:
    return [each for block in blocks for each in block.seconds]


def _speed(mine: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """How many times as fast as the others `mine` is."""
    return median_estimate([other / own for other, own in zip(others, mine, strict=True)]).to_dict()
