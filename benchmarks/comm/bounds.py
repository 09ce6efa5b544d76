# SPDX-License-Identifier: Apache-2.0
"""The least time that a network needs: pure arithmetic over the rates of its hosts, no clock and no torch.

A host's rate is the payload rate of its shaped rails together. A shaper lets `burst` bytes through at once after a
pause. Every bound subtracts these bytes once, so that a share above 1 always means a mistake.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PAYLOAD = 1448 / 1514  # payload's share of a shaped rate: TCP with timestamps, MTU 1500, Ethernet headers counted


@dataclass(frozen=True)
class Link:
    """One host's access to the network: payload bytes per second, and the payload that passes at once after a pause."""

    rate: float
    burst: float = 0.0


@dataclass(frozen=True)
class Gradient:
    """Bytes that are ready to send `ready_seconds` after the step began."""

    ready_seconds: float
    num_bytes: int


def all_reduce_seconds(num_bytes: int, links: Sequence[Link], count: int = 1) -> float:
    """`count` all-reduces back to back. All hosts together send every buffer 2(p-1) times; each sends it at least once.

    Example, equal hosts: 2(p-1)/p * bytes / rate, the bound of a ring. Example, one slow host: its bytes / its rate,
    because it has to send only its own part, once.
    """
    total = count * num_bytes
    together = 2 * (len(links) - 1) * total - sum(link.burst for link in links)
    alone = max((total - link.burst) / link.rate for link in links)
    return max(0.0, together / sum(link.rate for link in links), alone)


def step_seconds(gradients: Sequence[Gradient], links: Sequence[Link], compute_seconds: float) -> float:
    """A step whose gradients are all-reduced at full rate, one after another, each as soon as it is ready."""
    latest, pending = compute_seconds, 0
    for gradient in sorted(gradients, key=lambda each: each.ready_seconds, reverse=True):
        pending += gradient.num_bytes
        latest = max(latest, gradient.ready_seconds + all_reduce_seconds(pending, links))
    return latest


def bucketed(gradients: Sequence[Gradient], limits: Sequence[int]) -> list[Gradient]:
    """The buckets that DistributedDataParallel sends: gradients in order; a bucket closes once it reaches its byte
    limit.

    The last limit applies to all further buckets. A bucket is ready when its last gradient is.
    """
    buckets, held = [], 0
    for gradient in gradients:
        held += gradient.num_bytes
        if held >= limits[min(len(buckets), len(limits) - 1)]:
            buckets.append(Gradient(gradient.ready_seconds, held))
            held = 0
    return [*buckets, Gradient(gradients[-1].ready_seconds, held)] if held else buckets
