# SPDX-License-Identifier: Apache-2.0
"""The least time that a network needs: pure arithmetic over the rates of its hosts, no clock and no torch.

A host's rate is what its shaped rails carry of payload together. A shaper lets `burst` bytes through at once after a
pause; every bound subtracts them once, so that a share above 1 is a mistake and never a gift.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PAYLOAD = 1448 / 1514  # of a shaped rate: TCP with timestamps at an MTU of 1500, Ethernet headers counted


@dataclass(frozen=True)
class Link:
    """One host's way to the network: payload bytes per second and bytes of payload that a pause saves up."""

    rate: float
    burst: float = 0.0


@dataclass(frozen=True)
class Gradient:
    """Bytes that exist from this moment of the step on."""

    ready_seconds: float
    num_bytes: int


def all_reduce_seconds(num_bytes: int, links: Sequence[Link], count: int = 1) -> float:
    """`count` all-reduces back to back. All hosts together send every buffer 2(p-1) times; each sends it at least once.

    Equal hosts: 2(p-1)/p * bytes / rate, the bound of a ring. One slow host: its bytes / its rate, where sending its
    own part once is all that the others ask of it.
    """
    total = count * num_bytes
    together = 2 * (len(links) - 1) * total - sum(link.burst for link in links)
    alone = max((total - link.burst) / link.rate for link in links)
    return max(0.0, together / sum(link.rate for link in links), alone)


def step_seconds(gradients: Sequence[Gradient], links: Sequence[Link], compute_seconds: float) -> float:
    """A step whose gradients are all-reduced at full rate, one after another, each from when it exists."""
    latest, pending = compute_seconds, 0
    for gradient in sorted(gradients, key=lambda each: each.ready_seconds, reverse=True):
        pending += gradient.num_bytes
        latest = max(latest, gradient.ready_seconds + all_reduce_seconds(pending, links))
    return latest


def bucketed(gradients: Sequence[Gradient], limits: Sequence[int]) -> list[Gradient]:
    """What DistributedDataParallel sends: gradients in order, a bucket closed as soon as it holds its limit of bytes.

    The last limit is that of all further buckets. A bucket is ready when its last gradient is.
    """
    buckets, held = [], 0
    for gradient in gradients:
        held += gradient.num_bytes
        if held >= limits[min(len(buckets), len(limits) - 1)]:
            buckets.append(Gradient(gradient.ready_seconds, held))
            held = 0
    return [*buckets, Gradient(gradients[-1].ready_seconds, held)] if held else buckets
