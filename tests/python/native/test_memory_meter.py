# SPDX-License-Identifier: Apache-2.0
"""The memory meter: peaks and live bytes of CPU tensors, over all threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from agspeed import native

_native: Any = native.load()
MEGABYTE = 1 << 20
SLACK = 1 << 16
"""The C library rounds sizes up a little."""


@pytest.fixture
def meter() -> Iterator[Any]:
    meter = _native.MemoryMeter()
    meter.start()
    yield meter
    meter.stop()


def megabytes(count: int) -> torch.Tensor:
    return torch.empty(count * MEGABYTE, dtype=torch.uint8)


def near(bytes_: int, megabytes_: int) -> bool:
    return megabytes_ * MEGABYTE <= bytes_ <= megabytes_ * MEGABYTE + SLACK


def test_live_and_peak(meter: Any) -> None:
    a = megabytes(4)
    b = megabytes(2)
    assert near(meter.live_bytes(), 6)
    del b
    assert near(meter.live_bytes(), 4) and near(meter.peak_bytes(), 6)
    meter.reset_peak()
    assert near(meter.peak_bytes(), 4)
    del a
    assert meter.live_bytes() < SLACK


def test_a_peak_inside_backward_is_seen(meter: Any) -> None:
    x = torch.ones(MEGABYTE, requires_grad=True)  # 4 MB
    loss = (x * 2).exp().sum()
    before = meter.live_bytes()
    meter.reset_peak()
    loss.backward()
    assert meter.peak_bytes() - before >= 4 * MEGABYTE


def test_other_threads_count(meter: Any) -> None:
    kept: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: kept.append(megabytes(3)))
    thread.start()
    thread.join()
    assert near(meter.live_bytes(), 3)
    kept.clear()
    assert meter.live_bytes() < SLACK


def test_storage_outlives_the_meter() -> None:
    meter = _native.MemoryMeter()
    meter.start()
    kept = megabytes(1)
    meter.stop()
    assert near(meter.live_bytes(), 1)
    del kept
    again = megabytes(8)
    assert near(meter.peak_bytes(), 1), "a stopped meter keeps its values"
    del again, meter


def test_the_profiler_still_sees_allocations(meter: Any) -> None:
    with torch.profiler.profile(profile_memory=True) as profile:
        kept = megabytes(2)
    assert sum(event.self_cpu_memory_usage for event in profile.key_averages()) >= 2 * MEGABYTE
    del kept


def test_one_meter_at_a_time(meter: Any) -> None:
    with pytest.raises(RuntimeError, match="already running"):
        _native.MemoryMeter().start()
    assert meter.is_running


def test_scratch_memory_of_convolutions_is_freed(meter: Any) -> None:
    convolution, images = torch.nn.Conv2d(16, 16, 3, padding=1), torch.randn(8, 16, 32, 32)

    def step() -> int:
        convolution(images).sum().backward()
        convolution.zero_grad(set_to_none=True)
        return int(meter.live_bytes())

    first = step()
    assert {step() for _ in range(3)} == {first}
