# SPDX-License-Identifier: Apache-2.0
"""Predicts whether a codec shortens the exchange of a bucket, from measurements of all ranks (pure functions).

A dense all-reduce takes D seconds, and an exchange of a few bytes takes a seconds. A codec that computes for c
seconds, starts k collectives and sends the part f of the bytes takes

    c + k * a + f * (D - a)

D and a are the shortest of all ranks, because other ranks may have waited for a late one. c is the longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["COSTS", "Cost", "Estimate", "Measured", "decided"]

_WORTH = 0.8
"""A codec is tried only if its exchange takes less than this part of the dense one."""
_ALIKE = 1.1
"""Of two codecs whose predictions differ by less, the one with the smaller error is taken."""


class Cost(NamedTuple):
    """The messages of a codec."""

    collectives: int
    bytes: float
    """As a part of the bytes of float32."""


COSTS: dict[str, Cost] = {"bf16": Cost(1, 1 / 2), "int8": Cost(2, 260 / 1024)}
"""The codecs to choose from."""


class Measured(NamedTuple):
    """The measurements of one rank. A codec without a measurement has infinity."""

    latency: float
    dense: float
    seconds: tuple[float, ...]
    """The computing time of each codec of COSTS."""
    errors: tuple[float, ...]
    """The norm of each codec's error, relative to the norm of the gradients."""

    def numbers(self) -> list[float]:
        return [self.latency, self.dense, *self.seconds, *self.errors]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Measured:
        middle = 2 + len(COSTS)
        return cls(numbers[0], numbers[1], tuple(numbers[2:middle]), tuple(numbers[middle:]))

    def best(self, other: Measured) -> Measured:
        """Of two measurements of one rank: the shortest times and the largest errors."""
        return Measured(
            min(self.latency, other.latency),
            min(self.dense, other.dense),
            tuple(map(min, self.seconds, other.seconds)),
            tuple(map(max, self.errors, other.errors)),
        )


class Estimate(NamedTuple):
    """The prediction for a bucket, equal at all ranks."""

    codec: str
    """ "" for none."""
    why: str
    dense_s: float
    codec_s: Mapping[str, float]
    errors: Mapping[str, float]


def decided(ranks: Sequence[Measured], max_error: float) -> Estimate:
    """Chooses the codec to try for a bucket."""
    latency, dense = min(each.latency for each in ranks), min(each.dense for each in ranks)
    transfer = max(dense - latency, 0.0)
    seconds, errors = {}, {}
    for at, (name, cost) in enumerate(COSTS.items()):
        compute = max(each.seconds[at] for each in ranks)
        seconds[name] = compute + cost.collectives * latency + cost.bytes * transfer
        errors[name] = max(each.errors[at] for each in ranks)
    allowed = [name for name in COSTS if errors[name] <= max_error]
    best = min(allowed, key=seconds.__getitem__, default="")
    if best:
        best = min((name for name in allowed if seconds[name] <= _ALIKE * seconds[best]), key=errors.__getitem__)
    if best and seconds[best] < _WORTH * dense:
        return Estimate(best, "", dense, seconds, errors)
    why = f"each codec's error exceeds max_error={max_error}" if not best else f"{best} is not predicted to be faster"
    return Estimate("", why, dense, seconds, errors)
