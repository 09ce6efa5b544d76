# SPDX-License-Identifier: Apache-2.0
"""Part "coded" of a case: all-reduces of real gradients, coded losslessly and not.

agspeed sends the values as they are here; the side "agspeed-coded" codes where that pays. Ratios below 1 mean that
coding is faster. All sides must have the same bits in their results.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.comm import blocks, network, sides
from benchmarks.comm.all_reduce import BLOCK_SECONDS, judged, side_row
from benchmarks.comm.contest import Contest

_MOST_OPERATIONS = 8  # each has a buffer of its own at all ranks of all sides


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    found = [
        _row(contest, case, size, values, dtype, seconds)
        for size in sizes
        for values, dtype in map(str.split, case["runs"])
    ]
    return {"coded": found}


def _row(
    contest: Contest, case: Mapping[str, Any], num_bytes: int, values: str, dtype: str, seconds: float
) -> dict[str, Any]:
    given = {"num_bytes": num_bytes, "values": values, "dtype": dtype}

    def run(name: str, count: int) -> blocks.Block:
        return contest.teams[name].block("gradients.all_reduce", count=count, **given)

    first = run(sides.OURS, 2)
    plan = blocks.plan(first.seconds[-1], BLOCK_SECONDS, _MOST_OPERATIONS)
    for name in contest.teams:
        run(name, plan.operations)  # measures the rails, on which the decision to code depends
    before = _bytes_of_codes(contest)
    found = contest.rotate({name: partial(run, name, plan.operations) for name in contest.teams}, seconds)
    after = _bytes_of_codes(contest)
    digests = {digest for team in contest.teams.values() for digest in team.ask("gradients.digest")}
    if len(digests) != 1:
        raise RuntimeError(f"{num_bytes} bytes of {values} {dtype}: the sides' results differ")
    links = network.links(network.host_rates(case)) if network.is_shaped(case) else None
    rows = {name: side_row(name, found, plan, num_bytes, links) for name in found}
    for name, row in rows.items():
        row["values_per_code"] = _ratio(before[name], after[name])
    return judged({"bytes": num_bytes, "values": values, "dtype": dtype, "sides": rows})


def _bytes_of_codes(contest: Contest) -> dict[str, tuple[int, int]]:
    """Returns the bytes of values and of codes of all ranks, for each side."""
    asked = {name: team.ask("gradients.bytes_of_codes") for name, team in contest.teams.items()}
    return {name: tuple(map(sum, zip(*found, strict=True))) for name, found in asked.items()}


def _ratio(before: tuple[int, int], after: tuple[int, int]) -> float | None:
    """How many bytes of values one byte of code stands for; None: nothing was coded."""
    values, codes = after[0] - before[0], after[1] - before[1]
    return values / codes if codes else None
