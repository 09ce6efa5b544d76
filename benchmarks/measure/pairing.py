# SPDX-License-Identifier: Apache-2.0
"""Paired timing of two training sessions on real steps, in ABBA blocks.

Order is A B B A: linear drift cancels inside a unit. The first step after a switch is run but not timed (it refills
caches). Both blocks of a pair run the same batches. Microsecond steps are grouped until a block is long enough for
the clock; a block is always a whole number of the session's periods. Nothing runs but the step itself while timing:
the garbage collector is off inside a unit and runs between units.
"""

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.measure.statistics import Estimate, median_estimate
from benchmarks.workloads.base import Training


@dataclass(frozen=True)
class Limits:
    """When to stop: narrow enough after `min_pairs`, or at `max_pairs`, or after `seconds`."""

    min_pairs: int = 100
    max_pairs: int = 240
    half_width: float = 0.007
    seconds: float = 180.0
    block_seconds: float = 0.010


@dataclass
class Comparison:
    """Result of pairing: one entry per pair; times are seconds per step."""

    steps_per_block: int
    reference: list[float] = field(default_factory=list)
    contender: list[float] = field(default_factory=list)
    stopped: str = ""

    @property
    def speedup(self) -> Estimate:
        """Median of reference time / contender time: above 1 means that the contender is faster."""
        return median_estimate([a / b for a, b in zip(self.reference, self.contender, strict=True)])

    @property
    def extra_seconds(self) -> Estimate:
        """Median of contender time - reference time per step."""
        return median_estimate([b - a for a, b in zip(self.reference, self.contender, strict=True)])

    def to_dict(self) -> dict[str, object]:
        return {
            "speedup": self.speedup.to_dict(),
            "extra_us": {
                key: round(value * 1e6, 3)
                for key, value in self.extra_seconds.to_dict().items()
                if key in ("value", "low", "high")
            },
            "ms": median_estimate(self.contender).value * 1e3,
            "reference_ms": median_estimate(self.reference).value * 1e3,
            "steps_per_block": self.steps_per_block,
            "stopped": self.stopped,
        }


def compare(
    reference: Training, contender: Training, limits: Limits, clock: Callable[[], float] = time.perf_counter
) -> Comparison:
    """Times `contender` against `reference`. Both must be warmed up; both go on training."""
    result = Comparison(_steps_per_block(reference, contender, limits, clock))
    started = clock()
    gc.collect()
    gc.freeze()  # older objects need no look between units
    try:
        while not result.stopped:
            first = len(result.reference) // 2 * result.steps_per_block
            _unit(reference, contender, first, result, clock)
            result.stopped = _reason_to_stop(result, limits, clock() - started)
    finally:
        gc.unfreeze()
    return result


def _unit(reference: Training, contender: Training, first: int, result: Comparison, clock: Callable[[], float]) -> None:
    """One A B B A unit: two pairs. The collector runs before it, never inside."""
    gc.collect()
    gc.disable()
    try:
        for side, times, fresh in (
            (reference, result.reference, True),
            (contender, result.contender, True),
            (contender, result.contender, False),
            (reference, result.reference, True),
        ):
            if fresh:
                side.step(side.batches[(first - 1) % len(side.batches)])
            times.append(_block(side, first, result.steps_per_block, clock))
    finally:
        gc.enable()


def _block(side: Training, first: int, steps: int, clock: Callable[[], float]) -> float:
    """Seconds per step over `steps` consecutive batches."""
    batches = [side.batches[(first + index) % len(side.batches)] for index in range(steps)]
    started = clock()
    for batch in batches:
        side.step(batch)
    return (clock() - started) / steps


def _steps_per_block(reference: Training, contender: Training, limits: Limits, clock: Callable[[], float]) -> int:
    """Steps that fill `block_seconds` on the faster side, rounded up to whole periods."""
    period = reference.period
    fastest = min(_block(side, 0, 3 * period, clock) for side in (reference, contender))
    periods = math.ceil(limits.block_seconds / max(fastest * period, 1e-7))
    return period * max(1, periods)


def _reason_to_stop(result: Comparison, limits: Limits, elapsed: float) -> str:
    pairs = len(result.reference)
    if pairs >= limits.min_pairs and result.speedup.half_width <= limits.half_width:
        return "narrow"
    if pairs >= limits.max_pairs:
        return "max-pairs"
    return "time-limit" if elapsed > limits.seconds else ""
