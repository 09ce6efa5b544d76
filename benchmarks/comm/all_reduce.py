# SPDX-License-Identifier: Apache-2.0
"""Part "all_reduce" of a case: all-reduces back to back, for each size and side.

The results are shares of the network's bound and ratios to agspeed. A block has at least eight operations of agspeed;
slower sides do as many operations as fit into the same time.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.comm import blocks, bounds, network, sides
from benchmarks.comm.blocks import Block, Plan
from benchmarks.comm.contest import Contest
from benchmarks.measure.statistics import median_estimate

BLOCK_SECONDS = 1.0
MOST_OPERATIONS = 256
CONTROL_RANGE = (0.98, 1.02)
_LEAST_RAIL_SHARE = 0.01  # the least share of each rail, for a side that uses all rails


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    return {"sizes": [_size(contest, case, size, seconds) for size in sizes]}


def _size(contest: Contest, case: Mapping[str, Any], num_bytes: int, seconds: float) -> dict[str, Any]:
    seconds_once, rail_shares = {}, {}
    for name in list(contest.teams):
        if (tried := contest.attempt(name, partial(_try_out, contest, name, num_bytes))) is not None:
            seconds_once[name], rail_shares[name] = tried
    plans = _plans(contest, seconds_once)
    actions = {name: _action(contest, name, num_bytes, plan.operations) for name, plan in plans.items()}
    found = contest.rotate(actions, seconds)
    links = network.links(network.host_rates(case)) if network.is_shaped(case) else None
    rows = {
        name: side_row(name, found, plans[name], num_bytes, links) | {"rail_shares": rail_shares[name]}
        for name in found
    }
    return judged({"bytes": num_bytes, "sides": rows})


def _action(contest: Contest, name: str, num_bytes: int, count: int) -> Callable[[], Block]:
    return partial(contest.teams[name].block, "programs.all_reduce", num_bytes=num_bytes, count=count)


def _turns(contest: Contest, name: str) -> int:
    return len(contest.bed.hosts[0].rails) if contest.teams[name].side.takes_turns else 1


def _try_out(contest: Contest, name: str, num_bytes: int) -> tuple[float, list[float]]:
    """Returns the seconds of an operation and each rail's share of the bytes, from a short block.

    The block has two operations, or one for each rail if the side uses the rails in turn. Raises RuntimeError if the
    data did not cross the rails.
    """
    team, turns = contest.teams[name], _turns(contest, name)
    count = max(2, turns)
    block, sent = contest.sent_per_rail(_action(contest, name, num_bytes, count))
    needed = count * 2 * (len(contest.bed.hosts) - 1) * num_bytes
    if sum(sent) < needed:
        raise RuntimeError(f"{name}: {sum(sent):,} bytes crossed the rails, {count} all-reduces need {needed:,}")
    shares = [each / max(sum(sent), 1) for each in sent]
    if team.side.over_mptcp and min(shares) < _LEAST_RAIL_SHARE:
        raise RuntimeError(f"{name}: the shares of its rails are {shares}; MPTCP does not use them all")
    return statistics.fmean(block.seconds[-turns:]), shares


def _plans(contest: Contest, seconds: Mapping[str, float]) -> dict[str, Plan]:
    ours = blocks.plan(seconds[sides.OURS], BLOCK_SECONDS, MOST_OPERATIONS)
    length = ours.operations * seconds[sides.OURS]
    equal = (sides.OURS, sides.CONTROL)
    return {
        name: ours if name in equal else blocks.plan_within(once, length, _turns(contest, name))
        for name, once in seconds.items()
    }


def side_row(
    name: str,
    found: Mapping[str, Sequence[Block]],
    plan: Plan,
    num_bytes: int,
    links: Sequence[bounds.Link] | None,
) -> dict[str, Any]:
    """One side's figures: milliseconds, share of the bound, and its time over agspeed's."""
    mine = found[name]
    samples = [sample for block in mine for sample in block.samples(plan.samples)]
    row = {
        "operations": plan.operations,
        "blocks": len(mine),
        "ms": median_estimate([1e3 * sample for sample in samples]).to_dict(),
        "cpu_ms": 1e3 * median_estimate([block.cpu_seconds_per_operation for block in mine]).value,
    }
    ranks = len(mine[0].cpu_seconds)
    row["cpu_seconds_per_gb"] = 1e6 * row["cpu_ms"] * ranks / (2 * (ranks - 1) * num_bytes)
    if links:
        least = bounds.all_reduce_seconds(num_bytes, links, plan.operations) / plan.operations
        total = sum(sum(block.seconds) for block in mine)
        row["bound_ms"] = 1e3 * least
        row["share"] = median_estimate([least / sample for sample in samples]).to_dict()
        row["sustained"] = least * plan.operations * len(mine) / total
    if name != sides.OURS:
        row["ratio"] = median_estimate(blocks.ratios(mine, found[sides.OURS], plan.samples)).to_dict()
    return row


def judged(size: dict[str, Any]) -> dict[str, Any]:
    """Adds the verdict of the control, which is agspeed compared with agspeed."""
    control = size["sides"].get(sides.CONTROL)
    if control is None or CONTROL_RANGE[0] <= control["ratio"]["value"] <= CONTROL_RANGE[1]:
        return size | {"status": "ok"}
    return size | {"status": "void", "reason": f"agspeed against agspeed read {control['ratio']['value']:.3f}"}
