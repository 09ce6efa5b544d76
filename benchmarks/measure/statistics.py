# SPDX-License-Identifier: Apache-2.0
"""Statistics of paired ratios: pure functions over lists of floats, no torch and no clock.

Intervals are order statistics of the sample (the binomial interval of the median). They assume no distribution, need no
random numbers and are exact for independent pairs.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median with its interval, from `count` samples."""

    value: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        """Half of the interval's width, relative to the value."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf

    def to_dict(self) -> dict[str, float]:
        return asdict(self) | {"half_width": self.half_width}


def median_estimate(samples: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Median of `samples`, and the tightest symmetric pair of order statistics that covers it with `confidence`.

    The interval is the whole range if there are too few samples for the confidence. Raises ValueError on an empty
    sample.
    """
    if not samples:
        raise ValueError("a median needs at least one sample")
    ordered, count = sorted(samples), len(samples)
    rank = _lower_rank(count, (1 - confidence) / 2)
    return Estimate(statistics.median(ordered), ordered[rank], ordered[count - 1 - rank], count)


def _lower_rank(count: int, tail: float) -> int:
    """Largest index r (from 0) with P(Binomial(count, 1/2) <= r) <= tail; 0 when even the minimum misses more."""
    below, rank = 0.0, 0
    term = math.exp(-count * math.log(2))
    for successes in range(count):
        below += term
        if below > tail:
            break
        rank = successes
        term *= (count - successes) / (successes + 1)
    return min(rank, (count - 1) // 2)


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    if not logs:
        raise ValueError("a geometric mean needs at least one value")
    return math.exp(math.fsum(logs) / len(logs))
