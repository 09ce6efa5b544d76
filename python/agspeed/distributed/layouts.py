# SPDX-License-Identifier: Apache-2.0
"""Bucket layouts of DistributedDataParallel, and predictions of how long a step takes with one.

A *layout* has two caps: one for the first bucket and one for all others. Gradients fill the buckets in the order in
which they become ready. An arm that runs with a layout names it after a slash: "native/b1-4". Predictions use the times
at which gradients become ready. This module has pure functions only; `reducers.py` gives a layout to a wrapper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIB = 1 << 20
_NAME = re.compile(r"b(\d{1,6}(?:\.\d{1,12})?)-(\d{1,6}(?:\.\d{1,12})?)")
_FIRST_MIB = (0.25, 1, 4)
_REST_MIB = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Layout:
    first_bytes: int
    rest_bytes: int

    @property
    def name(self) -> str:
        """Both caps in MiB: "b0.25-8"."""
        return f"b{self.first_bytes / MIB:g}-{self.rest_bytes / MIB:g}"

    @staticmethod
    def parse(name: str) -> Layout:
        """Raises: ValueError if `name` is not the name of a layout."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name!r} names no bucket layout")
        return Layout(int(float(found[1]) * MIB), int(float(found[2]) * MIB))


@dataclass(frozen=True)
class BucketCost:
    """The time of one reduction in seconds: `seconds` + bytes * `seconds_per_byte`."""

    seconds: float
    seconds_per_byte: float

    @staticmethod
    def fitted(times: Sequence[tuple[int, float]]) -> BucketCost:
        """Fits the cost to measurements. times: (bytes, seconds) of at least two sizes, in ascending order."""
        slopes = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in pairwise(times)]
        slope = max(slopes[-1], 1e-15)
        return BucketCost(max(times[0][1] - slope * times[0][0], 0.0), slope)

    def of(self, num_bytes: int) -> float:
        return self.seconds + self.seconds_per_byte * num_bytes


def plan_of(arm: str) -> str:
    """The plan that computes in an arm: "native" for "native/b1-4"."""
    return arm.partition("/")[0]


def layout_of(arm: str) -> str:
    """The name of an arm's layout; "" for the user's own layout."""
    return arm.partition("/")[2]


def is_layout(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


# --- prediction -------------------------------------------------------------------------------------------------------


def buckets_of(ready: Iterable[tuple[float, int]], layout: Layout) -> list[tuple[float, int]]:
    """Returns (ready, bytes) of each bucket. The gradient that brings a bucket to its cap closes it."""
    buckets: list[tuple[float, int]] = []
    size, cap, seconds = 0, layout.first_bytes, 0.0
    for seconds, num_bytes in ready:
        size += num_bytes
        if size >= cap:
            buckets.append((seconds, size))
            size, cap = 0, layout.rest_bytes
    return [*buckets, (seconds, size)] if size else buckets


def predicted_seconds(buckets: Iterable[tuple[float, int]], cost: BucketCost) -> float:
    """The seconds from the beginning of the backward to the end of the last reduction. Reductions do not overlap."""
    end = 0.0
    for ready, num_bytes in buckets:
        end = max(end, ready) + cost.of(num_bytes)
    return end


def best_layouts(ready: Sequence[tuple[float, int]], cost: BucketCost, own: Layout, count: int = 2) -> list[Layout]:
    """The `count` layouts with the shortest predicted step. Their buckets differ from each other's and from `own`'s."""
    found = {tuple(buckets_of(ready, own))}
    chosen = []
    grid = [Layout(int(first * MIB), rest * MIB) for first in _FIRST_MIB for rest in _REST_MIB if rest >= first]
    for layout in sorted(grid, key=lambda layout: predicted_seconds(buckets_of(ready, layout), cost)):
        buckets = tuple(buckets_of(ready, layout))
        if buckets not in found:
            found.add(buckets)
            chosen.append(layout)
    return chosen[:count]


def neighbours(layout: Layout, ready: Sequence[tuple[float, int]], known: Iterable[Layout]) -> list[Layout]:
    """The same layout with halved and with doubled buckets, unless `layout` or a known one gives the same buckets."""
    found = {tuple(buckets_of(ready, other)) for other in (layout, *known)}
    halved = Layout(min(layout.first_bytes, layout.rest_bytes // 2), layout.rest_bytes // 2)
    doubled = Layout(layout.first_bytes, layout.rest_bytes * 2)
    return [other for other in (halved, doubled) if tuple(buckets_of(ready, other)) not in found]
