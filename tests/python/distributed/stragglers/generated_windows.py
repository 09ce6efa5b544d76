# SPDX-License-Identifier: Apache-2.0
"""Generates the windows of jobs with noise: quiet jobs, and jobs in which one rank holds the others up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from agspeed.distributed.stragglers.windows import RailRate, Window

_STEPS_PER_ROUND = 100


@dataclass(frozen=True)
class Straggling:
    """A rank that becomes slow, or all work of its host does ("slow host").

    amount: by which part it computes longer, waits for input, or loses its second rail.
    """

    kind: str
    rank: int
    first_round: int
    amount: float
    end_round: int = 1 << 30

    def is_on(self, rank: int, index: int) -> bool:
        return rank == self.rank and self.first_round <= index < self.end_round


@dataclass(frozen=True)
class Job:
    """A job's properties. noise: standard deviation of a rank's times between rounds; pauses: how often a rank has a
    long pause in a round."""

    num_ranks: int
    step_s: float
    input_s: float
    network_s: float
    noise: float
    pauses: float
    imbalance: float = 0.02
    """The most by which a rank is always slower or quicker."""

    @staticmethod
    def drawn(chance: random.Random, *, most_noise: float = 0.2) -> Job:
        step_s = 10 ** chance.uniform(-3, 0.5)
        return Job(
            num_ranks=chance.choice([2, 3, 4, 8]),
            step_s=step_s,
            input_s=step_s * chance.choice([0.0, 0.01, 0.3]),
            network_s=step_s * chance.uniform(0.02, 0.5),
            noise=min(chance.choice([0.005, 0.02, 0.05, 0.1, 0.2]), most_noise),
            pauses=chance.choice([0.0, 0.005, 0.02]),
        )

    def rounds(self, chance: random.Random, straggling: Straggling | None = None) -> Iterator[list[Window]]:
        """Yields the windows of all ranks, round by round. The ranks differ a little, and their speeds wander."""
        lasting = [1 + chance.uniform(-self.imbalance, self.imbalance) for _ in range(self.num_ranks)]
        wandering = [0.0] * self.num_ranks
        rates = [[10 ** chance.uniform(7, 9) for _ in range(2)] for _ in range(self.num_ranks)]
        common, index = 1.0, 0
        while True:
            common *= 1 + chance.gauss(0, 0.01)  # for example, batches become longer at all ranks
            wandering = [0.9 * drift + chance.gauss(0, 0.004) for drift in wandering]
            compute = [
                self.step_s * common * lasting[rank] * (1 + wandering[rank]) * self._noise(chance)
                for rank in range(self.num_ranks)
            ]
            inputs = [self.input_s * self._noise(chance) for _ in compute]
            starved = [min(abs(chance.gauss(0.03, 0.02)), 1.0) for _ in compute]
            carried = [[rate * self._noise(chance) for rate in of_rank] for of_rank in rates]
            if straggling is not None and straggling.is_on(straggling.rank, index):
                rank, amount = straggling.rank, straggling.amount
                inputs[rank] += self.step_s * common * amount * (straggling.kind == "input")
                compute[rank] *= 1 + amount * (straggling.kind in ("compute", "host"))
                starved[rank] = min(starved[rank] + amount / (1 + amount) * (straggling.kind == "host"), 1.0)
                carried[rank][1] *= 1 - amount * (straggling.kind == "rail")
                if straggling.kind == "slow host":
                    for each in range(self.num_ranks):
                        slower = 1 + amount * (each // 2 == rank // 2)
                        compute[each], inputs[each] = slower * compute[each], slower * inputs[each]
            yield self._windows(index, compute, inputs, starved, carried)
            index += 1

    def _noise(self, chance: random.Random) -> float:
        pause = chance.uniform(1.2, 4) if chance.random() < self.pauses else 1.0
        return pause * max(chance.gauss(1, self.noise), 0.1)

    def _windows(
        self, index: int, compute: list[float], inputs: list[float], starved: list[float], rates: list[list[float]]
    ) -> list[Window]:
        own = [sum(pair) for pair in zip(compute, inputs, strict=True)]
        step_s = max(own) + self.network_s
        return [
            Window(
                number=index + 1,
                host=f"node{rank // 2}",
                step=_STEPS_PER_ROUND * (index + 1),
                step_s=step_s,
                input_s=inputs[rank],
                wait_s=step_s - own[rank],
                compute_s=compute[rank],
                starved=starved[rank],
                rails=tuple(RailRate(f"eth{rail}", rate) for rail, rate in enumerate(rates[rank])),
            )
            for rank in range(self.num_ranks)
        ]
