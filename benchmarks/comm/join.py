# SPDX-License-Identifier: Apache-2.0
"""Part "join" of a case: compiled and eager steps of DDP whose compute is replayed, over the same buckets.

A way is how the model is compiled (`joining.py`); a side is the backend. Take the shorter of communication and
backward: overlap is the part of it that runs at the same time as the other. The last bucket is ready only at the end of
the backward and cannot overlap; this limits overlap.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.comm import bounds, network
from benchmarks.comm.blocks import Block
from benchmarks.comm.contest import Contest
from benchmarks.comm.step import expanded, gradients
from benchmarks.measure.statistics import median_estimate

FORWARD_PER_BACKWARD = 1 / 2
EAGER = "eager"


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Times all ways on all sides. `sizes` do not apply, because the layers of the case have their own."""
    layers, rows = expanded(case["layers"]), []
    opened = _open(contest, case, layers)
    communication = communication_seconds(contest, next(iter(opened))[0], EAGER)
    for ratio in case["communication_per_backward"]:
        backward = communication / ratio
        asked = {"forward_seconds": FORWARD_PER_BACKWARD * backward, "backward_seconds": backward}
        found = _turns(contest, opened, asked | {"count": case["steps"]}, seconds)
        for (side, way), mine in found.items():
            described = {"communication_per_backward": ratio, "side": side, "way": way, "stages": opened[side, way]}
            eager = found[side, EAGER]
            rows.append(described | _row(mine, eager, layers, case, communication, backward))
    return {"communication_seconds": communication, "joins": rows}


def _open(contest: Contest, case: Mapping[str, Any], layers: Sequence[tuple[int, float]]) -> dict[tuple[str, str], Any]:
    """Opens all ways on all sides. Returns the number of stages in which gradients leave, by side and way. Raises
    RuntimeError if a way's gradients differ from eager's.
    """
    opened = {}
    for side, team in contest.teams.items():
        for way in case["ways"]:
            opening = {"way": way, "layers": layers, "bucket_mb": case["bucket_mb"]}
            opened[side, way] = team.ask("joining.open_way", **opening)[0]["stages"]
    expected = None  # compare when all ways are open: opening one makes the earlier ones capture again
    for side, way in opened:
        found = contest.teams[side].ask("joining.gradients", way=way)[0]
        expected = expected or found
        if any(abs(one - other) > 1e-4 * (1 + abs(other)) for one, other in zip(found, expected, strict=True)):
            raise RuntimeError(f"{side}, {way}: gradients differ from those of {EAGER}")
    return opened


def communication_seconds(contest: Contest, side: str, way: str) -> float:
    """The seconds of a step without compute."""
    block = contest.teams[side].block("joining.steps", way=way, forward_seconds=0.0, backward_seconds=0.0, count=6)
    return median_estimate(block.seconds[1:]).value


def _turns(
    contest: Contest, opened: Mapping[tuple[str, str], Any], asked: Mapping[str, Any], seconds: float
) -> dict[tuple[str, str], list[Block]]:
    """Runs blocks of all ways of all sides in turn, the same number of each."""

    def action(side: str, way: str) -> Callable[[], Block]:
        return lambda: contest.teams[side].block("joining.steps", way=way, **asked)

    return contest.take_turns({key: action(*key) for key in opened}, seconds)


def _row(
    mine: Sequence[Block],
    eager: Sequence[Block],
    layers: Sequence[tuple[int, float]],
    case: Mapping[str, Any],
    communication: float,
    backward: float,
) -> dict[str, Any]:
    compute = (1 + FORWARD_PER_BACKWARD) * backward
    links = network.links(network.host_rates(case))
    made = gradients(layers, compute)
    buckets = bounds.bucketed(made, [int(case["bucket_mb"] * (1 << 20))])
    shorter = min(communication, backward)
    seconds = [each for block in mine for each in block.seconds]
    paired = [
        one / other for a, b in zip(mine, eager, strict=True) for one, other in zip(a.seconds, b.seconds, strict=True)
    ]
    return {
        "seconds": median_estimate(seconds).to_dict(),
        "over_eager": median_estimate(paired).to_dict(),
        "over_fluid": median_estimate([each / bounds.step_seconds(made, links, compute) for each in seconds]).to_dict(),
        "overlap": median_estimate([(compute + communication - each) / shorter for each in seconds]).to_dict(),
        "overlap_limit": 1 - communication * buckets[-1].num_bytes / sum(each for each, _ in layers) / shorter,
    }
