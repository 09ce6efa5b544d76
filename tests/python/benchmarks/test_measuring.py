# SPDX-License-Identifier: Apache-2.0
"""The instruments on synthetic samples with known results: medians, intervals, pairing under a scripted clock."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest
import torch

from agspeed import native
from benchmarks.measure import candidates
from benchmarks.measure.machine import Watch, pin
from benchmarks.measure.memory import peak_bytes, use_allocator
from benchmarks.measure.pairing import Comparison, Limits, compare, compare_all
from benchmarks.measure.statistics import geometric_mean, median_estimate
from benchmarks.workloads import load
from benchmarks.workloads.base import Batch, Training

SEED = 20


class Simulation:
    """Sessions whose steps take a scripted time on a clock of their own. `steps` logs (name, batch) in order."""

    def __init__(self, drift_per_second: float = 0.0, noise: float = 0.0, after_switch: float = 1.0) -> None:
        self.now, self.last = 0.0, ""
        self.drift, self.noise, self.after_switch = drift_per_second, noise, after_switch
        self.random = random.Random(SEED)
        self.steps: list[tuple[str, int]] = []

    def clock(self) -> float:
        return self.now

    def session(self, name: str, seconds: float, batches: int = 16, period: int = 1) -> Training:
        def step(batch: Batch) -> torch.Tensor:
            scale = (1 + self.drift * self.now) * (1 + self.noise * self.random.uniform(-1, 1))
            self.now += seconds * scale * (self.after_switch if name != self.last else 1.0)
            self.last = name
            self.steps.append((name, batch[0]))
            return torch.zeros(())

        return Training({}, step, [(index,) for index in range(batches)], period)


def test_the_median_and_its_order_statistics() -> None:
    estimate = median_estimate([float(value) for value in range(1, 101)])
    assert (estimate.value, estimate.low, estimate.high, estimate.count) == (50.5, 40.0, 61.0, 100)
    assert estimate.half_width == pytest.approx(10.5 / 50.5)


def test_small_samples_give_their_range() -> None:
    assert (median_estimate([3.0]).low, median_estimate([3.0]).high) == (3.0, 3.0)
    few = median_estimate([2.0, 1.0, 3.0])
    assert (few.low, few.value, few.high) == (1.0, 2.0, 3.0)
    with pytest.raises(ValueError, match="at least one sample"):
        median_estimate([])


@pytest.mark.parametrize("count", [9, 40, 101])
def test_the_interval_covers_the_true_median(count: int) -> None:
    generator, trials, hits = random.Random(SEED), 800, 0
    for _ in range(trials):
        estimate = median_estimate([math.exp(generator.gauss(0.1, 0.3)) for _ in range(count)])
        hits += estimate.low <= math.exp(0.1) <= estimate.high
    print(f"seed {SEED}, {count} samples: covered {hits} of {trials}")
    assert hits / trials >= 0.93


def test_the_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="at least one value"):
        geometric_mean([])


@pytest.mark.parametrize("ratio", [0.8, 1.0, 2.5])
def test_a_known_ratio_is_found_under_noise(ratio: float) -> None:
    world = Simulation(noise=0.05)
    result = compare(world.session("a", 0.004), world.session("b", 0.004 / ratio), Limits(), world.clock)
    print(f"seed {SEED}: {result.speedup}")
    assert result.speedup.value == pytest.approx(ratio, rel=0.02)
    assert result.speedup.low <= ratio * 1.01 and result.speedup.high >= ratio * 0.99
    assert result.stopped == "narrow" and 100 <= result.speedup.count <= 240


def test_drift_cancels_inside_a_unit() -> None:
    world = Simulation(drift_per_second=0.05)
    result = compare(world.session("a", 0.01), world.session("b", 0.01), Limits(), world.clock)
    assert result.speedup.value == pytest.approx(1.0, abs=2e-4)


def test_the_first_step_after_a_switch_is_not_timed() -> None:
    world = Simulation(after_switch=50.0)
    result = compare(world.session("a", 0.01), world.session("b", 0.005), Limits(), world.clock)
    assert result.speedup.value == pytest.approx(2.0, rel=1e-6)


def test_all_contenders_share_one_rotation_there_and_back() -> None:
    world = Simulation()
    sides = {name: world.session(name, seconds) for name, seconds in (("b", 0.02), ("c", 0.005))}
    limits = Limits(min_pairs=4, max_pairs=4, block_seconds=0.005)
    results = compare_all(world.session("a", 0.01), sides, limits, world.clock)
    blocks = [name for name, _ in itertools.groupby(name for name, _ in world.steps)]
    assert "".join(blocks) == "abc" + "abcba" + "bcacb"  # one round to size the blocks, then two units of two pairs
    assert [result.stopped for result in results.values()] == ["narrow", "narrow"]
    assert [len(result.contender) for result in results.values()] == [4, 4]
    assert [result.speedup.value for result in results.values()] == pytest.approx([0.5, 2.0])


def test_all_sides_go_on_from_the_same_weights_and_optimizer_states() -> None:
    sessions = [load("gan").build() for _ in range(2)]
    for batch in sessions[1].batches[:3]:
        sessions[1].step(batch)
    compare(*sessions, Limits(min_pairs=2, max_pairs=2, block_seconds=1e-6))
    for module, other in zip(*(session.modules.values() for session in sessions), strict=True):
        for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)  # each session draws other dropout numbers
    mine, theirs = ([float(s["step"]) for o in session.optimizers for s in o.state.values()] for session in sessions)
    # At most one, from the untimed steps after a switch. It would be three if sessions kept their own states.
    assert max(mine + theirs) - min(mine + theirs) <= 1


def test_a_levelled_side_runs_the_fused_step_on_the_states_of_eager() -> None:
    eager, levelled = (load("mlp").build() for _ in range(2))
    candidates.prepare(candidates.find("eager-levelled"), levelled, Path("unused"))
    for session in (eager, levelled):
        session.step(session.batches[0])
    levelled.go_on_from(eager)
    forms = [group.get("fused") for session in (eager, levelled) for group in session.optimizers[0].param_groups]
    assert forms == [None, True]
    for session in (eager, levelled):
        session.step(session.batches[1])
    for mine, theirs in zip(*(session.modules["model"].parameters() for session in (eager, levelled)), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
def test_freed_memory_is_kept_for_the_sides_that_retain_it() -> None:
    def idle_bytes() -> int:
        torch.empty(4 << 20)
        module = native.load()
        assert module is not None
        return int(module.retained_memory()["idle_bytes"])

    try:
        use_allocator("retained")
        assert idle_bytes() >= 16 << 20
        use_allocator("torch")
        assert idle_bytes() == 0
        use_allocator("retained")
        assert idle_bytes() >= 16 << 20
    finally:
        use_allocator("chosen")
    assert idle_bytes() == 0, "no session has chosen it"


def test_contenders_are_paired_with_each_other_block_by_block() -> None:
    world = Simulation(drift_per_second=0.05)
    sides = {name: world.session(name, seconds) for name, seconds in (("b", 0.02), ("c", 0.005))}
    results = compare_all(world.session("a", 0.01), sides, Limits(), world.clock)
    assert results["c"].speedup_over(results["b"]).value == pytest.approx(4.0, rel=1e-3)
    assert results["b"].speedup_over(results["c"]).value == pytest.approx(0.25, rel=1e-3)
    uneven = Comparison(1, contender=[2.0, 3.0, 8.0]), Comparison(1, contender=[1.0, 1.0, 2.0])
    assert uneven[1].speedup_over(uneven[0]).value == 3.0  # the median of ratios, not the ratio of medians


def test_a_rotation_goes_on_until_the_widest_interval_is_narrow() -> None:
    world = Simulation(noise=0.05)
    sides = {"b": world.session("b", 0.01), "c": world.session("c", 0.01)}
    limits = Limits(min_pairs=10, half_width=0.01)
    results = compare_all(world.session("a", 0.01), sides, limits, world.clock)
    print(f"seed {SEED}: {[str(result.speedup) for result in results.values()]}")
    assert len({len(result.reference) for result in results.values()}) == 1
    assert all(result.speedup.half_width <= 0.01 for result in results.values() if result.stopped == "narrow")


def test_microsecond_steps_are_grouped_and_long_ones_are_not() -> None:
    world = Simulation()
    limits = Limits(block_seconds=0.01)
    assert compare(world.session("a", 1e-4), world.session("b", 2e-4), limits, world.clock).steps_per_block == 100
    assert compare(world.session("a", 0.1), world.session("b", 0.1), limits, world.clock).steps_per_block == 1


def test_blocks_are_whole_periods_of_equal_batches() -> None:
    world = Simulation()
    sides = world.session("a", 0.004, batches=8, period=8), world.session("b", 0.004, batches=8, period=8)
    result = compare(*sides, Limits(min_pairs=4, max_pairs=4), world.clock)
    assert result.steps_per_block == 8
    for name in ("a", "b"):
        batches = [batch for stepped, batch in world.steps if stepped == name]
        assert set(batches) == set(range(8))


def test_a_run_stops_at_its_limits() -> None:
    world = Simulation(noise=0.5)
    limits = Limits(min_pairs=10, max_pairs=20, half_width=1e-6)
    result = compare(world.session("a", 0.01), world.session("b", 0.01), limits, world.clock)
    assert (result.stopped, len(result.reference)) == ("max-pairs", 20)
    limits = Limits(min_pairs=10, max_pairs=10_000, half_width=1e-9, seconds=1.0)
    result = compare(world.session("a", 0.01), world.session("b", 0.01), limits, world.clock)
    assert result.stopped == "time-limit"


def test_extra_time_is_contender_minus_reference() -> None:
    world = Simulation()
    result = compare(world.session("a", 300e-6), world.session("b", 310e-6), Limits(), world.clock)
    assert result.extra_seconds.value == pytest.approx(10e-6)


def test_peak_memory_counts_what_a_step_allocates() -> None:
    def step(batch: Batch) -> torch.Tensor:
        held = torch.zeros(1 << 20) + 1
        return held.sum()

    peak = peak_bytes(Training({}, step, [()]))
    assert 8 << 20 <= int(str(peak["bytes"])) < 9 << 20, peak


def test_the_watch_reads_shares_of_its_cores() -> None:
    reading = Watch([0]).read()
    assert reading["cores"] == [0] and 0 <= float(str(reading["steal"])) <= 1


def test_pinning_to_more_cores_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="asked for 4096 threads, but only"):
        pin(4096)
