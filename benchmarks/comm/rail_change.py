# SPDX-License-Identifier: Apache-2.0
"""Part "rail_change" of a case: rates change during a stream of all-reduces. How soon is it at its new bound?

The operation in flight while the rates change counts neither before nor after.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import Any

from agspeed import netbed
from benchmarks.comm import bounds, network
from benchmarks.comm.blocks import Block
from benchmarks.comm.contest import Contest
from benchmarks.comm.team import Team
from benchmarks.measure.statistics import median_estimate

_BEFORE, _AFTER = 4, 10  # operations
_SETTLED = 5  # operations after which the share has to be that of a steady network
_LIMIT_S = 60.0
_GLANCE_S = 0.002


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Applies each change in turn, for each side. `seconds` does not apply."""
    rows = []
    for size in sizes:
        for name in list(contest.teams):
            rows += contest.attempt(name, partial(_changes, contest, name, case, size)) or []
    return {"changes": rows}


def _changes(contest: Contest, name: str, case: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    rows, before = [], case["rates"]
    set_rates(contest.bed, before)  # a side that failed may have left other rates
    for after in [*case["changes"], case["rates"]]:
        old, new = (_links(case, rates) for rates in (before, after))
        block, began, applied = _disturbed(contest, contest.teams[name], size, after)
        found = shares(block, began, applied, size, (old, new))
        rows.append({"bytes": size, "side": name, "from": before, "to": after, **found})
        before = after
    return rows


def _links(case: Mapping[str, Any], rates: Sequence[str]) -> list[bounds.Link]:
    return network.links([rates] * case["hosts"])


def _disturbed(contest: Contest, team: Team, size: int, rates: Sequence[str]) -> tuple[Block, float, float]:
    """Returns a block during which the rates change, and when the change began and was complete on all hosts."""
    file = contest.bed.scratch / "milestone"
    file.unlink(missing_ok=True)
    team.begin("programs.all_reduce", num_bytes=size, count=_BEFORE + _AFTER, milestone=_BEFORE, file=str(file))
    deadline = time.monotonic() + _LIMIT_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(_GLANCE_S)
    began = time.monotonic()
    set_rates(contest.bed, rates)
    applied = time.monotonic()
    return Block.of_ranks(team.answers()), began, applied


def set_rates(bed: netbed.Netbed, rates: Sequence[str]) -> None:
    rails = [(rail, rate) for host in bed.hosts for rail, rate in zip(host.rails, rates, strict=True)]
    with ThreadPoolExecutor(len(rails)) as pool:
        for done in [pool.submit(rail.set_rate, rate) for rail, rate in rails]:
            done.result()


def shares(
    block: Block, began: float, applied: float, size: int, links: tuple[Sequence[bounds.Link], Sequence[bounds.Link]]
) -> dict[str, Any]:
    """Returns shares of the bound: a summary of the operations that ended before the change, and each one after it."""
    ends = [block.started + elapsed for elapsed in accumulate(block.seconds)]
    count, num_before = len(ends), sum(end <= began for end in ends)
    first = 1 + sum(end < applied for end in ends)  # the first operation that began after the change
    least = [bounds.all_reduce_seconds(size, each, count) / count for each in links]
    before = [least[0] / each for each in block.seconds[:num_before]]
    after = [least[1] / each for each in block.seconds[first:]]
    if not before or len(after) <= _SETTLED:
        raise RuntimeError(f"the rates changed between operations {num_before} and {first} of {count}: cannot judge")
    return {
        "before": median_estimate(before).to_dict(),
        "after": after,
        "settled": median_estimate(after[_SETTLED:]).to_dict(),
    }
