# SPDX-License-Identifier: Apache-2.0
"""Part "all_reduce" of a case: all-reduces back to back, of each size by each side, as shares of the bound and ratios.

A block has at least eight operations of agspeed; slower sides do as many as fit in its time.
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
_LEAST_RAIL_SHARE = 0.01  # of a side that shall use all rails


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    return {"sizes": [_size(contest, case, size, seconds) for size in sizes]}


def _size(contest: Contest, case: Mapping[str, Any], num_bytes: int, seconds: float) -> dict[str, Any]:
    plans, rails = _plans(contest, num_bytes), {}
    for name in list(contest.teams):
        rails[name] = contest.attempt(name, partial(_rail_shares, contest, name, num_bytes))
    actions = {name: _action(contest, name, num_bytes, plans[name].operations) for name in contest.teams}
    found = contest.rotate(actions, seconds)
    links = network.links(network.host_rates(case)) if network.is_shaped(case) else None
    rows = {name: side_row(name, found, plans[name], num_bytes, links) for name in found}
    for name, row in rows.items():
        row["rail_shares"] = rails[name]
    return judged({"bytes": num_bytes, "sides": rows})


def _action(contest: Contest, name: str, num_bytes: int, count: int) -> Callable[[], Block]:
    return partial(contest.teams[name].block, "programs.all_reduce", num_bytes=num_bytes, count=count)


def _plans(contest: Contest, num_bytes: int) -> dict[str, Plan]:
    """From two operations of each side, which also warm it up, or from one on each rail where it takes turns."""
    rails = len(contest.bed.hosts[0].rails)
    turns = {name: rails if team.side.takes_turns else 1 for name, team in contest.teams.items()}
    seconds = {}
    for name, count in turns.items():
        if block := contest.attempt(name, _action(contest, name, num_bytes, max(2, count))):
            seconds[name] = statistics.fmean(block.seconds[-count:])
    ours = blocks.plan(seconds[sides.OURS], BLOCK_SECONDS, MOST_OPERATIONS)
    length = ours.operations * seconds[sides.OURS]
    return {
        name: ours if name in (sides.OURS, sides.CONTROL) else blocks.plan_within(once, length, turns[name])
        for name, once in seconds.items()
    }


def _rail_shares(contest: Contest, name: str, num_bytes: int) -> list[float]:
    """How two operations spread over the rails. RuntimeError where the data went elsewhere."""
    team = contest.teams[name]
    _, sent = contest.sent_per_rail(_action(contest, name, num_bytes, 2))
    needed = 2 * 2 * (team.size - 1) * num_bytes
    if sum(sent) < needed:
        raise RuntimeError(f"{name}: {sum(sent):,} bytes crossed the rails, two all-reduces need {needed:,}")
    shares = [each / sum(sent) for each in sent]
    if team.side.over_mptcp and min(shares) < _LEAST_RAIL_SHARE:
        raise RuntimeError(f"{name}: the shares of its rails are {shares}; MPTCP does not use them all")
    return shares


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
    """Adds the verdict of the control: agspeed against agspeed."""
    control = size["sides"].get(sides.CONTROL)
    if control is None or CONTROL_RANGE[0] <= control["ratio"]["value"] <= CONTROL_RANGE[1]:
        return size | {"status": "ok"}
    return size | {"status": "void", "reason": f"agspeed against agspeed read {control['ratio']['value']:.3f}"}
