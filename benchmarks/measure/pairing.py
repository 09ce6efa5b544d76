# SPDX-License-Identifier: Apache-2.0
"""Paired timing of training sessions on real steps, in palindromic blocks.

The order is A B B A, or A B C C B A with more contenders, so linear drift cancels inside a unit. All ratios see the
same state of machine and process, including the allocator's, which changes as sessions come and go. The next unit
begins with another side, so that each side takes every place.

Half a block of steps after each switch is run but not timed: these steps refill caches and the heap. All sides start
from the same weights and optimizer states, and run the same number of the same batches. This matters because the cost
of a step may depend on the progress of training. Example: on an Intel Xeon, denormal numbers in Adam's state cost the
`mlp` workload 25 % from step 700 on.

agspeed's allocator, which keeps freed memory, serves the whole process. It is paused in the steps of sides that do not
use it, such as eager.

Microsecond steps are grouped until a block is long enough for the clock. A block is always a whole number of the
session's periods. Nothing but the step itself runs while timing: the garbage collector is off inside a unit and runs
between units.
"""

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.measure.memory import use_allocator
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

    def speedup_over(self, other: "Comparison") -> Estimate:
        """The same, relative to another contender of the same rotation."""
        return median_estimate([b / c for b, c in zip(other.contender, self.contender, strict=True)])

    def reason_to_stop(self, limits: Limits, elapsed: float) -> str:
        """Returns why the comparison may stop after these seconds; empty if it goes on."""
        pairs = len(self.reference)
        if pairs >= limits.min_pairs and self.speedup.half_width <= limits.half_width:
            return "narrow"
        if pairs >= limits.max_pairs:
            return "max-pairs"
        return "time-limit" if elapsed > limits.seconds else ""

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
    """Times `contender` against `reference`. Requires: both are warmed up. Both continue training."""
    return compare_all(reference, {"": contender}, limits, clock)[""]


def compare_all(
    reference: Training,
    contenders: Mapping[str, Training],
    limits: Limits,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Comparison]:
    """Times all contenders against `reference` in one rotation, until every comparison has a reason to stop."""
    sides = [reference, *contenders.values()]
    for contender in contenders.values():
        contender.go_on_from(reference)
    steps = _steps_per_block(sides, limits, clock)
    results = {name: Comparison(steps) for name in contenders}
    started = clock()
    gc.collect()
    gc.freeze()  # spares the collections between units a scan of older objects
    try:
        while not all(result.stopped for result in results.values()):
            _unit(sides, list(results.values()), clock)
            for result in results.values():
                result.stopped = result.reason_to_stop(limits, clock() - started)
    finally:
        gc.unfreeze()
        use_allocator("chosen")
    return results


def _unit(sides: list[Training], results: list[Comparison], clock: Callable[[], float]) -> None:
    """Runs every side once in order and once in reverse: two pairs each. Collects garbage before, never inside."""
    turn, steps = len(results[0].reference) // 2, results[0].steps_per_block
    first = turn * steps
    order = [(turn + place) % len(sides) for place in range(len(sides))]
    gc.collect()
    gc.disable()
    try:
        there = {side: _switch_and_time(sides[side], first, steps, clock) for side in order}
        back = {order[-1]: _block(sides[order[-1]], first, steps, clock)}
        back |= {side: _switch_and_time(sides[side], first, steps, clock) for side in order[-2::-1]}
    finally:
        gc.enable()
    for seconds in (there, back):
        for side, result in enumerate(results, 1):
            result.reference.append(seconds[0])
            result.contender.append(seconds[side])


def _switch_and_time(side: Training, first: int, steps: int, clock: Callable[[], float]) -> float:
    use_allocator(side.memory)
    for index in range(first - (steps + 1) // 2, first):
        side.step(side.batches[index % len(side.batches)])
    return _block(side, first, steps, clock)


def _block(side: Training, first: int, steps: int, clock: Callable[[], float]) -> float:
    """Seconds per step over `steps` consecutive batches."""
    batches = [side.batches[(first + index) % len(side.batches)] for index in range(steps)]
    started = clock()
    for batch in batches:
        side.step(batch)
    return (clock() - started) / steps


def _steps_per_block(sides: list[Training], limits: Limits, clock: Callable[[], float]) -> int:
    """Steps that fill `block_seconds` on the fastest side, rounded up to whole periods."""
    period = sides[0].period
    fastest = min(_block(side, 0, 3 * period, clock) for side in sides)
    periods = math.ceil(limits.block_seconds / max(fastest * period, 1e-7))
    return period * max(1, periods)
