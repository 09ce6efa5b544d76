# SPDX-License-Identifier: Apache-2.0
"""DeviceMeter: measures the memory of training steps on a device from torch's allocator, without resetting its peak.

`torch.cuda.max_memory_allocated()` belongs to the user, so its peak is only read. If the peak rises within a step, or
was reset, it is that step's peak. Otherwise the step stayed below it, and its peak is estimated by the memory that is
allocated at the end of a forward and at the end of the step. This counts activations exactly and omits memory that
lives only within a backward. The allocator counts the pools of captured graphs as free between replays. So the meter
adds them for the graphs that the step replayed (`GRAPHS`).
"""

from __future__ import annotations

from typing import Protocol


class Allocator(Protocol):
    """The allocator's statistics, as an `Accelerator` provides them."""

    def allocated_bytes(self) -> tuple[int, int]: ...


class GraphMemory:
    """The bytes that captured graphs hold beyond the allocator's count, for graphs that ran since the last query."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}

    def replayed(self, graph: object, held_bytes: int) -> None:
        self._used[id(graph)] = held_bytes

    def take(self) -> int:
        """Returns the sum for all graphs that ran since the last call."""
        held = sum(self._used.values())
        self._used.clear()
        return held


GRAPHS = GraphMemory()


class DeviceMeter:
    """The meter of one session on a device, on its training thread. All users belong to the session, so the meter does
    not distinguish them."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._is_running = False
        self._known_peak = self._most = 0

    def acquire(self, user: object) -> None:
        self._is_running = True
        self.take_peak(user)

    def release(self, user: object) -> None:
        self._is_running = False

    def sample(self) -> None:
        """Samples the allocated memory at the end of a forward, while the activations for its backward are live."""
        if self._is_running:
            self._most = max(self._most, self._allocator.allocated_bytes()[0])

    def take_peak(self, user: object) -> int:
        """Returns the peak bytes since the last call, see the module docstring; 0 while the meter does not run."""
        if not self._is_running:
            return 0
        now, peak = self._allocator.allocated_bytes()
        found = peak if peak != self._known_peak else max(self._most, now)
        self._known_peak, self._most = peak, now
        return found + GRAPHS.take()
