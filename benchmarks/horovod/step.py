# SPDX-License-Identifier: Apache-2.0
"""Part "step" of a case: whole steps of DistributedOptimizer beside steps of DDP, over a published model's gradients.

Compute is replayed by sleeping. Its length follows from the least time that the network needs for the gradients. So the
ratio of the two, which decides efficiency, does not depend on the number of hosts. Sides called "horovod..." train with
agspeed.horovod, all others with DistributedDataParallel.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.comm import bounds, network
from benchmarks.comm.blocks import Block
from benchmarks.comm.contest import Contest
from benchmarks.comm.sides import CONTROL, OURS
from benchmarks.comm.step import FORWARD, gradients
from benchmarks.comm.team import Team
from benchmarks.horovod import gradient_sets
from benchmarks.measure.statistics import median_estimate

HOROVOD = "horovod"
_ALONE_STEPS = 2


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Times all sides. `sizes` do not apply. Raises RuntimeError if Horovod's side fails."""
    layers, links, rows = gradient_sets.load(case["set"]), network.links(network.host_rates(case)), []
    total = gradient_sets.num_bytes(layers)
    communication = bounds.all_reduce_seconds(total, links)
    chosen = {}
    for name, team in list(contest.teams.items()):
        caps = case.get("bucket_mb", {}).get(name, [0])
        compute = communication / case["communication_per_compute"][0]
        if (cap := contest.attempt(name, partial(_open, team, layers, caps, (compute, case["steps"])))) is not None:
            chosen[name] = cap
    contest.teams[OURS].ask("horovod.ranks.open_session", way="alone", layers=layers, bucket_mb=0, forward=FORWARD)
    for ratio in case["communication_per_compute"]:
        compute = communication / ratio
        fluid = bounds.step_seconds(_made(layers, compute), links, compute)
        alone = statistics.median(_steps(contest.teams[OURS], "alone", compute, _ALONE_STEPS).seconds)
        actions = {
            name: partial(_steps, team, _way(name), compute, case["steps"]) for name, team in contest.teams.items()
        }
        found = contest.rotate(actions, seconds)
        if HOROVOD not in found:
            raise RuntimeError(f"{HOROVOD}: {contest.failed.get(HOROVOD, 'is not among the sides of this run')}")
        described = {"set": case["set"], "bytes": total, "communication_per_compute": ratio}
        described |= {"compute_seconds": compute, "alone_seconds": alone, "fluid_seconds": fluid}
        for name in found:
            rows.append({**described, "side": name, "bucket_mb": chosen[name], **row(name, found, alone, fluid)})
    for name, team in contest.teams.items():
        team.ask("horovod.ranks.check", way=_way(name))
    return {"optimizer_steps": rows}


def row(name: str, found: Mapping[str, Sequence[Block]], alone: float, fluid: float) -> dict[str, Any]:
    """One side's figures: seconds of a step, efficiency, and the ratio to Horovod's side (for the control: to
    agspeed)."""
    seconds = {side: [each for block in blocks for each in block.seconds] for side, blocks in found.items()}
    mine, reference = seconds[name], OURS if name == CONTROL else HOROVOD
    return {
        "seconds": median_estimate(mine).to_dict(),
        "over_fluid": median_estimate([each / fluid for each in mine]).to_dict(),
        "efficiency": median_estimate([alone / each for each in mine]).to_dict(),
        "over": reference,
        "ratio": median_estimate([one / other for one, other in zip(mine, seconds[reference], strict=True)]).to_dict(),
        "cpu_seconds": statistics.fmean(block.cpu_seconds_per_operation for block in found[name]),
    }


def _open(team: Team, layers: gradient_sets.Layers, caps: Sequence[float], block: tuple[float, int]) -> float:
    """Opens the side's session with the bucket cap that was fastest in a block of steps. Returns that cap."""
    way = _way(team.side.name)
    tried = dict[float, float]()
    for cap in caps if len(caps) > 1 else []:
        team.ask("horovod.ranks.open_session", way=way, layers=layers, bucket_mb=cap, forward=FORWARD)
        tried[cap] = min(_steps(team, way, *block).seconds)
    best = min(tried, key=lambda cap: tried[cap]) if tried else caps[0]
    if best != next(reversed(tried), None):
        team.ask("horovod.ranks.open_session", way=way, layers=layers, bucket_mb=best, forward=FORWARD)
    _steps(team, way, block[0], 1)  # touches all memory once, so that no page fault is timed
    return best


def _steps(team: Team, way: str, compute_seconds: float, count: int) -> Block:
    return team.block("horovod.ranks.steps", way=way, compute_seconds=compute_seconds, count=count)


def _way(side: str) -> str:
    return "horovod" if side.startswith(HOROVOD) else "ddp"


def _made(layers: gradient_sets.Layers, compute_seconds: float) -> list[bounds.Gradient]:
    return gradients([(sum(sizes), share) for sizes, share in layers], compute_seconds)
