# SPDX-License-Identifier: Apache-2.0
"""Part "rail_change" of a case: rates change in a stream of all-reduces; how soon is it at its bound again?

The operation under way while the rates change counts neither before nor after.
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
_SETTLED = 5  # operations after which the share shall be that of a steady network
_USUAL_SHARE = 0.95  # only to guess when the change falls into the middle of an operation


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Each change in turn, by each side; `seconds` does not apply."""
    rows = []
    for size in sizes:
        for name in list(contest.teams):
            rows += contest.attempt(name, partial(_changes, contest, name, case, size)) or []
    return {"changes": rows}


def _changes(contest: Contest, name: str, case: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    rows, before = [], case["rates"]
    set_rates(contest.bed, before)  # a side that failed may have left others
    for after in [*case["changes"], case["rates"]]:
        old, new = (_links(case, rates) for rates in (before, after))
        block, applied = _disturbed(contest, contest.teams[name], size, old, after)
        found = shares(block, applied, size, old, new)
        rows.append({"bytes": size, "side": name, "from": before, "to": after, **found})
        before = after
    return rows


def _links(case: Mapping[str, Any], rates: Sequence[str]) -> list[bounds.Link]:
    return network.links([rates] * case["hosts"])


def _disturbed(
    contest: Contest, team: Team, size: int, old: Sequence[bounds.Link], after: Sequence[str]
) -> tuple[Block, float]:
    """A block in which the rates change after some operations, and when they had changed on all hosts."""
    team.begin("programs.all_reduce", num_bytes=size, count=_BEFORE + _AFTER)
    time.sleep((_BEFORE - 0.5) * bounds.all_reduce_seconds(size, old) / _USUAL_SHARE)
    set_rates(contest.bed, after)
    applied = time.monotonic()
    return Block.of_ranks(team.answers()), applied


def set_rates(bed: netbed.Netbed, rates: Sequence[str]) -> None:
    rails = [(rail, rate) for host in bed.hosts for rail, rate in zip(host.rails, rates, strict=True)]
    with ThreadPoolExecutor(len(rails)) as pool:
        for done in [pool.submit(rail.set_rate, rate) for rail, rate in rails]:
            done.result()


def shares(
    block: Block, applied: float, size: int, old: Sequence[bounds.Link], new: Sequence[bounds.Link]
) -> dict[str, Any]:
    """Shares of the bound before the change, and one by one after it."""
    ends = [block.started + elapsed for elapsed in accumulate(block.seconds)]
    first = 1 + next((at for at, end in enumerate(ends) if end >= applied), len(ends))  # the first that began after it
    count = len(block.seconds)
    least = [bounds.all_reduce_seconds(size, links, count) / count for links in (old, new)]
    before = [least[0] / each for each in block.seconds[: max(0, first - 2)]]
    after = [least[1] / each for each in block.seconds[first:]]
    if not before or len(after) <= _SETTLED:
        raise RuntimeError(f"the rates changed around operation {first} of {count}: too early or too late to judge")
    return {
        "before": median_estimate(before).to_dict(),
        "after": after,
        "settled": median_estimate(after[_SETTLED:]).to_dict(),
    }
