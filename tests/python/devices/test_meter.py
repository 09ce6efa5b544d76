# SPDX-License-Identifier: Apache-2.0
"""Memory of steps on a device, from an allocator whose peak is never reset."""

from __future__ import annotations

from agspeed.devices.meter import GRAPHS, DeviceMeter

_MIB = 1 << 20


class FakeAllocator:
    def __init__(self, live: int) -> None:
        self.live = self.peak = live

    def allocate(self, count: int) -> None:
        self.live += count
        self.peak = max(self.peak, self.live)

    def allocated_bytes(self) -> tuple[int, int]:
        return self.live, self.peak


def step(allocator: FakeAllocator, meter: DeviceMeter, activations: int, scratch: int) -> int:
    allocator.allocate(activations)
    meter.sample()
    allocator.allocate(scratch)
    allocator.allocate(-scratch - activations)
    return meter.take_peak(None)


def test_a_rising_peak_is_the_step_s() -> None:
    allocator = FakeAllocator(100 * _MIB)
    meter = DeviceMeter(allocator)
    meter.acquire(None)
    assert step(allocator, meter, 50 * _MIB, 8 * _MIB) == 158 * _MIB
    assert step(allocator, meter, 70 * _MIB, 8 * _MIB) == 178 * _MIB
    assert allocator.peak == 178 * _MIB, "the reported peak has changed"


def test_below_the_peak_activations_count() -> None:
    allocator = FakeAllocator(100 * _MIB)
    meter = DeviceMeter(allocator)
    meter.acquire(None)
    allocator.allocate(500 * _MIB)  # a check of the gate
    allocator.allocate(-500 * _MIB)
    meter.take_peak(None)
    assert step(allocator, meter, 50 * _MIB, 8 * _MIB) == 150 * _MIB
    assert step(allocator, meter, 90 * _MIB, 8 * _MIB) == 190 * _MIB


def test_a_peak_that_the_user_resets_is_the_step_s() -> None:
    allocator = FakeAllocator(100 * _MIB)
    meter = DeviceMeter(allocator)
    meter.acquire(None)
    step(allocator, meter, 300 * _MIB, 0)
    allocator.peak = allocator.live
    assert step(allocator, meter, 50 * _MIB, 8 * _MIB) == 158 * _MIB


def test_memory_of_replayed_graphs_is_added_once() -> None:
    allocator, graph = FakeAllocator(100 * _MIB), object()
    meter = DeviceMeter(allocator)
    meter.acquire(None)
    GRAPHS.replayed(graph, 30 * _MIB)
    GRAPHS.replayed(graph, 30 * _MIB)
    assert step(allocator, meter, 0, 0) == 130 * _MIB
    assert step(allocator, meter, 0, 0) == 100 * _MIB


def test_a_meter_that_does_not_run_knows_nothing() -> None:
    assert step(FakeAllocator(5 * _MIB), DeviceMeter(FakeAllocator(5 * _MIB)), 1, 1) == 0
