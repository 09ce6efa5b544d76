# SPDX-License-Identifier: Apache-2.0
"""Blocks of operations back to back, and what follows from them: samples, shares of a bound, ratios. No torch.

All ranks of a bed read one clock, so an operation ends when its last rank is done, and the next one begins there.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SAMPLES = 8  # of a full block; sides are paired sample by sample
_SLACK = 1.25


@dataclass(frozen=True)
class Block:
    """When it began, seconds of each operation, and processor seconds of each rank over all of them."""

    started: float
    seconds: list[float]
    cpu_seconds: list[float]

    @staticmethod
    def of_ranks(answers: Sequence[dict[str, Any]]) -> "Block":
        """From what each rank noted: when it began, when each operation ended there, and its processor time."""
        started = min(answer["started"] for answer in answers)
        ends = [started, *(max(times) for times in zip(*(answer["ended"] for answer in answers), strict=True))]
        seconds = [after - before for before, after in itertools.pairwise(ends)]
        return Block(started, seconds, [answer["cpu_seconds"] for answer in answers])

    @property
    def cpu_seconds_per_operation(self) -> float:
        """Of one rank, the mean of all."""
        return statistics.fmean(self.cpu_seconds) / len(self.seconds)

    def samples(self, count: int) -> list[float]:
        """Means over `count` equal groups of consecutive operations; the block must have a multiple of that."""
        group = len(self.seconds) // count
        return [statistics.fmean(self.seconds[at * group : (at + 1) * group]) for at in range(count)]


@dataclass(frozen=True)
class Plan:
    """How many samples a block has and how many operations each; their number is a power of two up to SAMPLES."""

    samples: int
    group: int

    @property
    def operations(self) -> int:
        return self.samples * self.group


def plan(operation_seconds: float, block_seconds: float, most: int) -> Plan:
    """A full block: at least one operation per sample, more until the block is as long as that, at most `most`."""
    wanted = block_seconds / max(operation_seconds, 1e-9) / SAMPLES
    return Plan(SAMPLES, max(1, min(round(wanted), most // SAMPLES)))


def plan_within(operation_seconds: float, block_seconds: float, turns: int) -> Plan:
    """A block about as long as the reference's, of a side that may be slower: fewer samples, each whole `turns`."""
    samples = SAMPLES
    while samples > 1 and samples * turns * operation_seconds > _SLACK * block_seconds:
        samples //= 2
    group = round(block_seconds / max(operation_seconds, 1e-9) / samples / turns) * turns
    return Plan(samples, max(turns, group))


def ratios(slower: Sequence[Block], faster: Sequence[Block], samples: int) -> list[float]:
    """Sample by sample, block by block: seconds per operation of the one over those of the other."""
    return [
        above / below
        for one, other in zip(slower, faster, strict=True)
        for above, below in zip(one.samples(samples), other.samples(samples), strict=True)
    ]
