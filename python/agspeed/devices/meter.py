# SPDX-License-Identifier: Apache-2.0
"""DeviceMeter: the memory that training steps take on a device, read from torch's allocator without resetting a peak.

`torch.cuda.max_memory_allocated()` belongs to the user, so its peak is only read. Where it rises within a step, or was
reset, it is that step's peak. Where it does not, the step stayed below it, and what is live at the end of a forward and
at the end of the step stands for it: activations are counted exactly, what lives within a backward alone is not. Memory
that captured graphs keep for their own use, which the allocator counts as free while nobody replays them, is added for
the graphs that the step replayed (`GRAPHS`).
"""

from __future__ import annotations

from typing import Protocol


class Allocator(Protocol):
    """What is read, as an `Accelerator` gives it."""

    def allocated_bytes(self) -> tuple[int, int]: ...


class GraphMemory:
    """Bytes that captured graphs hold beyond what the allocator counts, for those that ran since somebody asked."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}

    def replayed(self, graph: object, held_bytes: int) -> None:
        self._used[id(graph)] = held_bytes

    def take(self) -> int:
        """Of all graphs that ran since the last call."""
        held = sum(self._used.values())
        self._used.clear()
        return held


GRAPHS = GraphMemory()


class DeviceMeter:
    """One per session on a device, on its training thread. Users are the session's own: they need not be told apart."""

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
        """A forward has ended: what its backward will need is live."""
        if self._is_running:
            self._most = max(self._most, self._allocator.allocated_bytes()[0])

    def take_peak(self, user: object) -> int:
        """Bytes of the step since the last call, see the module's text; 0 while the meter does not run."""
        if not self._is_running:
            return 0
        now, peak = self._allocator.allocated_bytes()
        found = peak if peak != self._known_peak else max(self._most, now)
        self._known_peak, self._most = peak, now
        return found + GRAPHS.take()
