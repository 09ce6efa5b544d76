# SPDX-License-Identifier: Apache-2.0
"""The time of steps on a device: events at the borders of steps, read later and without waiting."""

from __future__ import annotations

import random

import pytest

from agspeed.devices.clock import MAX_PENDING, LateSteps, StepTimer
from tests.python.devices.fake_gpu import FakeGpu


def step(timer: StepTimer, gpu: FakeGpu, forward: float, backward: float, optimizer: float) -> None:
    timer.step_begins()
    timer.forward_begins()
    gpu.work(forward)
    timer.forward_ends()
    gpu.work(backward)
    timer.optimizer_begins()
    gpu.work(optimizer)


def test_a_step_is_measured_on_the_device_and_its_parts_apart() -> None:
    gpu = FakeGpu()
    late: LateSteps[int] = LateSteps(StepTimer(gpu))
    step(late.timer, gpu, 0.003, 0.005, 0.002)
    assert late.add(7) and not list(late.finished())
    gpu.synchronize()
    [(number, times)] = late.finished()
    assert number == 7
    assert times == pytest.approx((0.010, 0.003, 0.002))
    assert gpu.num_waits == 0


def test_a_host_that_is_slower_than_the_device_is_what_is_measured() -> None:
    gpu = FakeGpu()
    late: LateSteps[int] = LateSteps(StepTimer(gpu))
    late.timer.step_begins()
    for _ in range(10):
        gpu.work(0.0001)
        gpu.host += 0.001
    late.add(0)
    [(_, times)] = late.finished()
    assert times.busy == pytest.approx(0.010)


def test_steps_come_in_order_and_no_more_than_a_few_are_open() -> None:
    seed = random.randrange(1 << 30)
    generator, gpu = random.Random(seed), FakeGpu()
    late: LateSteps[int] = LateSteps(StepTimer(gpu))
    seen: list[int] = []
    durations = [generator.uniform(0.001, 0.02) for _ in range(2000)]
    for number, seconds in enumerate(durations):
        step(late.timer, gpu, 0.5 * seconds, 0.25 * seconds, 0.25 * seconds)
        late.add(number)
        gpu.host += generator.choice((0.0005, 0.01, 0.05))
        for found, times in late.finished():
            assert times.busy == pytest.approx(durations[found]), f"seed {seed}, step {found}"
            seen.append(found)
        assert len(late) <= MAX_PENDING, f"seed {seed}"
    assert seen == sorted(set(seen)) and len(seen) > 200, f"seed {seed}"
    assert gpu.num_waits == 0
    assert gpu.num_events <= 5 * (MAX_PENDING + 1), "events are not used again"


def test_nothing_is_recorded_while_the_stream_is_captured() -> None:
    gpu = FakeGpu()
    late: LateSteps[int] = LateSteps(StepTimer(gpu))
    gpu.capturing = True
    step(late.timer, gpu, 0.001, 0.001, 0.001)
    assert not late.add(0)
    gpu.capturing = False
    late.timer.step_begins()
    gpu.capturing = True
    assert not late.add(1)
    assert gpu.num_recorded == 1


def test_a_forward_that_raised_leaves_the_next_one_whole() -> None:
    gpu = FakeGpu()
    late: LateSteps[int] = LateSteps(StepTimer(gpu))
    late.timer.step_begins()
    late.timer.forward_begins()
    gpu.work(0.5)
    late.timer.forward_begins()
    gpu.work(0.002)
    late.timer.forward_ends()
    late.add(0)
    gpu.synchronize()
    [(_, times)] = late.finished()
    assert times.forward == pytest.approx(0.002)


def test_draining_waits_once_for_all() -> None:
    gpu = FakeGpu()
    late: LateSteps[int] = LateSteps(StepTimer(gpu))
    for number in range(3):
        step(late.timer, gpu, 0.01, 0.01, 0.01)
        late.add(number)
    assert [number for number, _ in late.drain()] == [0, 1, 2] and gpu.num_waits == 1
