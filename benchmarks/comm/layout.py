# SPDX-License-Identifier: Apache-2.0
"""Part "layout" of a case: the buckets that agspeed tunes for eager DDP beside fixed caps, with replayed compute.

Tuning starts anew for each share of communication. It starts from DDP's own buckets and captures nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.comm.blocks import Block
from benchmarks.comm.contest import Contest
from benchmarks.comm.join import FORWARD_PER_BACKWARD, communication_seconds
from benchmarks.comm.step import expanded
from benchmarks.measure.statistics import median_estimate

DEFAULT_CAP_MB = 25.0
_TUNED = "tuned"


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Compares tuned buckets with the caps in `bucket_mb`, DDP's default included. `sizes` do not apply: layers do."""
    layers, rows = expanded(case["layers"]), []
    for side, team in contest.teams.items():
        for cap in case["bucket_mb"]:
            team.ask("joining.open_way", way=_way(cap), layers=layers, bucket_mb=cap)
        communication = communication_seconds(contest, side, _way(DEFAULT_CAP_MB))
        for ratio in case["communication_per_backward"]:
            backward = communication / ratio
            asked = {"forward_seconds": FORWARD_PER_BACKWARD * backward, "backward_seconds": backward}
            limits = {"bucket_mb": DEFAULT_CAP_MB, "seconds": case["tuning_seconds"]}
            settled = team.ask("joining.open_tuned", way=_TUNED, layers=layers, **limits, **asked)[0]
            ways = [_TUNED, *map(_way, case["bucket_mb"])]
            found = _turns(contest, side, ways, asked | {"count": case["steps"]}, seconds)
            rows.append({"communication_per_backward": ratio, "side": side, **settled} | _row(found))
    return {"layouts": rows}


def _way(cap: float) -> str:
    return f"{cap:g} MiB"


def _turns(
    contest: Contest, side: str, ways: Sequence[str], asked: Mapping[str, Any], seconds: float
) -> dict[str, list[Block]]:
    def action(way: str) -> Callable[[], Block]:
        return lambda: contest.teams[side].block("joining.steps", way=way, **asked)

    return contest.take_turns({way: action(way) for way in ways}, seconds)


def _row(found: Mapping[str, Sequence[Block]]) -> dict[str, Any]:
    """The row of one side. `found` holds the same number of steps for each way."""
    seconds = {way: [each for block in blocks for each in block.seconds] for way, blocks in found.items()}
    caps = [way for way in seconds if way != _TUNED]
    best = min(caps, key=lambda way: median_estimate(seconds[way]).value)

    def over(other: str) -> dict[str, Any]:
        return median_estimate([a / b for a, b in zip(seconds[_TUNED], seconds[other], strict=True)]).to_dict()

    return {
        "seconds": median_estimate(seconds[_TUNED]).to_dict(),
        "best_cap": best,
        "over_best_cap": over(best),
        "over_default": over(_way(DEFAULT_CAP_MB)),
        "cap_seconds": {way: median_estimate(seconds[way]).value for way in caps},
    }
