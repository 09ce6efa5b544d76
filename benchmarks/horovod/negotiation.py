# SPDX-License-Identifier: Apache-2.0
"""Part "negotiation" of a case: many small named tensors, beside one operation of the same bytes and beside unfused.

"grouped" and "named" call hvd's functions. "optimizer" and "optimizer-grouped" call synchronize() of a
DistributedOptimizer whose gradients are all ready. Its work for each tensor is done in C++.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.comm import sizes as message_sizes
from benchmarks.comm.blocks import SAMPLES, Block, ratios
from benchmarks.comm.contest import Contest
from benchmarks.comm.sides import CONTROL, OURS
from benchmarks.measure.statistics import median_estimate

UNFUSED = "horovod-unfused"
Key = tuple[str, str]  # side, way
GROUPED: Key = (OURS, "grouped")
_AGAINST_GROUPED: dict[Key, Key] = {
    GROUPED: GROUPED,
    (CONTROL, "grouped"): GROUPED,
    (OURS, "named"): GROUPED,
    (OURS, "optimizer-grouped"): GROUPED,
    (OURS, "optimizer"): (OURS, "optimizer-grouped"),
}
_AGAINST_FUSED: dict[Key, Key] = {
    (OURS, "named"): (OURS, "named"),
    (CONTROL, "named"): (OURS, "named"),
    (UNFUSED, "named"): (OURS, "named"),
}
_BLOCK = 2 * SAMPLES  # operations


def measure(contest: Contest, case: Mapping[str, Any], sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Runs both comparisons, for `seconds` each. `sizes` replace the tensors' size. Raises RuntimeError if a side
    fails."""
    rows = []
    for num_bytes in sizes or [message_sizes.parse(case["bytes"])]:
        for count, pairs in ((case["grouped"], _AGAINST_GROUPED), (case["fused"], _AGAINST_FUSED)):
            for name in dict.fromkeys(side for side, _ in pairs):
                if name not in contest.teams:
                    raise RuntimeError(f"{name}: {contest.failed.get(name, 'is not among the sides of this run')}")
                contest.teams[name].ask("horovod.ranks.open_operations", num_tensors=count, num_bytes=num_bytes)
            found = contest.take_turns({key: _action(contest, *key) for key in pairs}, seconds)
            for key, other in pairs.items():
                described = {"tensors": count, "bytes": num_bytes, "side": key[0], "way": key[1]}
                rows.append(described | row(found[key], found[other], " ".join(other)))
    return {"negotiations": rows}


def row(mine: Sequence[Block], other: Sequence[Block], name: str) -> dict[str, Any]:
    """The row of one way: milliseconds of an operation, and the paired ratio of its time to another way's."""
    samples = [1e3 * sample for block in mine for sample in block.samples(SAMPLES)]
    processor = [block.cpu_seconds_per_operation for block in mine]
    return {
        "ms": median_estimate(samples).to_dict(),
        "cpu_ms": 1e3 * median_estimate(processor).value,
        "over": name,
        "ratio": median_estimate(ratios(mine, other, SAMPLES)).to_dict(),
    }


def _action(contest: Contest, side: str, way: str) -> Callable[[], Block]:
    return lambda: contest.teams[side].block("horovod.ranks.operations", way=way, count=_BLOCK)
