# SPDX-License-Identifier: Apache-2.0
"""Blocks of operations back to back, and the figures computed from them: samples and ratios. No torch.

All ranks of a bed read one clock. An operation ends when its last rank is done, and the next operation begins then.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SAMPLES = 8  # in a full block; sides are paired sample by sample
_SLACK = 1.25


@dataclass(frozen=True)
class Block:
    """The time at which it began, the seconds of each operation, and each rank's processor seconds over all of them."""

    started: float
    seconds: list[float]
    cpu_seconds: list[float]

    @staticmethod
    def of_ranks(answers: Sequence[dict[str, Any]]) -> "Block":
        """Makes a block from the records of all ranks: start, end of each operation on that rank, and processor
        time."""
        started = min(answer["started"] for answer in answers)
        ends = [started, *(max(times) for times in zip(*(answer["ended"] for answer in answers), strict=True))]
        seconds = [after - before for before, after in itertools.pairwise(ends)]
        return Block(started, seconds, [answer["cpu_seconds"] for answer in answers])

    @property
    def cpu_seconds_per_operation(self) -> float:
        """The mean over all ranks."""
        return statistics.fmean(self.cpu_seconds) / len(self.seconds)

    def samples(self, count: int) -> list[float]:
        """Means over `count` equal groups of consecutive operations. The number of operations is a multiple of
        `count`."""
        group = len(self.seconds) // count
        return [statistics.fmean(self.seconds[at * group : (at + 1) * group]) for at in range(count)]


@dataclass(frozen=True)
class Plan:
    """The number of samples in a block (a power of two, SAMPLES at most) and the number of operations in each
    sample."""

    samples: int
    group: int

    @property
    def operations(self) -> int:
        return self.samples * self.group


def plan(operation_seconds: float, block_seconds: float, most: int) -> Plan:
    """A full block: at least one operation per sample, and as many as fill `block_seconds`, but `most` in all."""
    wanted = block_seconds / max(operation_seconds, 1e-9) / SAMPLES
    return Plan(SAMPLES, max(1, min(round(wanted), most // SAMPLES)))


def plan_within(operation_seconds: float, block_seconds: float, turns: int) -> Plan:
    """A block as long as the reference's, for a side that may be slower: fewer samples, each of whole rounds of
    `turns`."""
    samples = SAMPLES
    while samples > 1 and samples * turns * operation_seconds > _SLACK * block_seconds:
        samples //= 2
    group = round(block_seconds / max(operation_seconds, 1e-9) / samples / turns) * turns
    return Plan(samples, max(turns, group))


def ratios(slower: Sequence[Block], faster: Sequence[Block], samples: int) -> list[float]:
    """Ratios of seconds per operation, `slower` over `faster`, paired block by block and sample by sample."""
    return [
        above / below
        for one, other in zip(slower, faster, strict=True)
        for above, below in zip(one.samples(samples), other.samples(samples), strict=True)
    ]
