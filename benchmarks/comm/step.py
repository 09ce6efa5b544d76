# SPDX-License-Identifier: Apache-2.0
"""Part "step" of a case: steps of DDP with sleeping layers, against the least time that their network allows.

There are three bounds. `fluid`: every gradient leaves at full rate as soon as it exists. `bucketed`: the same for DDP's
buckets. `submitted`: each bucket leaves when DDP really handed it over. Only the transport causes the time beyond it.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.comm import bounds, network, sides
from benchmarks.comm.blocks import Block
from benchmarks.comm.bounds import Gradient
from benchmarks.comm.contest import Contest
from benchmarks.measure.statistics import median_estimate

FORWARD = 1 / 3  # share of the compute; the rest is backward
DEFAULT_BUCKETS = (1 << 20, 25 << 20)  # DDP's own: the first one is small


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Times all sides. `sizes` do not apply, because the layers of the case have their own."""
    layers, rows = expanded(case["layers"]), []
    links = network.links(network.host_rates(case))
    for bucket_mb in case["bucket_mb"]:
        for name in list(contest.teams):
            opening = {"layers": layers, "bucket_mb": bucket_mb or None, "forward": FORWARD}
            contest.attempt(name, partial(contest.teams[name].ask, "training.open_session", **opening))
        for compute in case["compute_seconds"]:
            asked = {"compute_seconds": compute, "count": case["steps"]}
            actions = {name: partial(team.block, "training.steps", **asked) for name, team in contest.teams.items()}
            found = contest.rotate(actions, seconds)
            least = least_seconds(layers, bucket_mb, compute, links)
            for name, mine in found.items():
                row = {"bucket_mb": bucket_mb, "compute_seconds": compute, "side": name, **least, **_row(mine, least)}
                if contest.teams[name].side.backend == sides.OURS:
                    handed_over = contest.teams[name].ask("training.submissions")
                    shares = over_submitted(mine[-1], handed_over, links, sum(each for each, _ in layers))
                    row["over_submitted"] = median_estimate(shares).to_dict()
                rows.append(row)
    return {"steps": rows}


def expanded(layers: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Returns bytes and share of the compute for each layer, in order of the forward pass. The shares add up to one."""
    total = sum(each["compute"] for each in layers)
    return [
        (each["mib"] << 20, each["compute"] / total / each["count"]) for each in layers for _ in range(each["count"])
    ]


def gradients(layers: Sequence[tuple[int, float]], compute_seconds: float) -> list[Gradient]:
    """Returns the gradients in the order in which the backward pass makes them: last layer first."""
    ready, found = FORWARD * compute_seconds, []
    for num_bytes, share in reversed(layers):
        ready += share * (1 - FORWARD) * compute_seconds
        found.append(Gradient(ready, num_bytes))
    return found


def least_seconds(
    layers: Sequence[tuple[int, float]], bucket_mb: float, compute_seconds: float, links: Sequence[bounds.Link]
) -> dict[str, float]:
    """Returns the bounds `fluid` and `bucketed` of a step. `bucket_mb` 0 means DDP's default."""
    made = gradients(layers, compute_seconds)
    limits = (int(bucket_mb * (1 << 20)),) if bucket_mb else DEFAULT_BUCKETS
    return {
        "fluid_seconds": bounds.step_seconds(made, links, compute_seconds),
        "bucketed_seconds": bounds.step_seconds(bounds.bucketed(made, limits), links, compute_seconds),
    }


def over_submitted(
    block: Block, handed_over: Sequence[Sequence[tuple[float, int]]], links: Sequence[bounds.Link], step_bytes: int
) -> list[float]:
    """Returns each step's time over its bound `submitted`.

    `handed_over` holds time and bytes of each bucket, for each rank. The rank with the latest bound counts. Raises
    RuntimeError if the bytes of a step are incomplete.
    """
    found, began = [], block.started
    for seconds in block.seconds:
        of_ranks = [
            [Gradient(at - began, num_bytes) for at, num_bytes in rank if began <= at < began + seconds]
            for rank in handed_over
        ]
        if any(sum(gradient.num_bytes for gradient in each) != step_bytes for each in of_ranks):
            raise RuntimeError("the flight record does not hold all buckets of the last block: let it have fewer steps")
        found.append(seconds / max(bounds.step_seconds(each, links, 0.0) for each in of_ranks))
        began += seconds
    return found


def _row(mine: Sequence[Block], least: Mapping[str, float]) -> dict[str, Any]:
    seconds = [each for block in mine for each in block.seconds]
    return {
        "seconds": median_estimate(seconds).to_dict(),
        "over_fluid": median_estimate([each / least["fluid_seconds"] for each in seconds]).to_dict(),
        "over_bucketed": median_estimate([each / least["bucketed_seconds"] for each in seconds]).to_dict(),
        "cpu_seconds": statistics.fmean(block.cpu_seconds_per_operation for block in mine),
    }
