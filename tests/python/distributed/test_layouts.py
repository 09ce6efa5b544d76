# SPDX-License-Identifier: Apache-2.0
"""Bucket layouts: a new layout changes no bit of the weights, predictions follow from ready times, and wrappers whose
layout must not change keep theirs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from agspeed.distributed.layouts import (
    MIB,
    BucketCost,
    Layout,
    best_layouts,
    buckets_of,
    layout_of,
    neighbours,
    plan_of,
    predicted_seconds,
)
from tests.python.distributed import layout_cases
from tests.python.distributed.ranks import Ranks
from tests.python.support.pairs import pairs

needs_extension = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_TIMEOUT_S = 300
"""Tuning takes long on a busy machine and is no hang."""
_WRAPPERS: list[dict[str, Any]] = [
    {},
    {"keep": True},
    {"no_sync": True},
    {"hook": True},
    {"gradient_as_bucket_view": True},
    {"gradient_as_bucket_view": True, "keep": True, "no_sync": True},
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"bucket_cap_mb": 0.01},
]


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, timeout_s=_TIMEOUT_S) as started:
        yield started


@pytest.mark.slow
@needs_extension
@pytest.mark.parametrize(("wrapper", "dtype"), pairs(_WRAPPERS, ["float32", "bfloat16"]))
def test_another_layout_changes_no_bit(ranks: Ranks, tmp_path: Path, dtype: str, wrapper: dict[str, Any]) -> None:
    results = ranks.run(layout_cases.changed, tmp_path, dtype=dtype, **wrapper)
    for without, with_changes in results:
        assert torch.equal(with_changes, without)
        assert torch.equal(with_changes, results[0][1])


@needs_extension
def test_wrappers_that_may_keep_state_by_bucket_are_left_alone(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(layout_cases.left_alone, tmp_path):
        assert found == {
            "plain": None,
            "power_sgd": "it has a communication hook that may keep state by bucket",
            "unknown hook": "it has a communication hook that may keep state by bucket",
            "built-in hook": "it has a built-in communication hook",
            "optimizer in backward": "its optimizer steps in the backward",
            "delayed": "it delays reductions",
            "DETAIL": "torch's debug level is DETAIL",
            "join": "it is in a join",
            "mixed precision": "it trains in mixed precision",
        }


@pytest.mark.thorough
@needs_extension
@pytest.mark.parametrize("ranks", [3], indirect=True)
def test_layouts_alone_are_tuned_without_compiling_backends(ranks: Ranks, tmp_path: Path) -> None:
    for is_again in (False, True):
        results = ranks.run(layout_cases.buckets_of_an_eager_model, tmp_path, cache=str(tmp_path / "cache"))
        first = results[0]
        for found in results:
            assert found["status"] == "eager"
            assert found["regions"] == 0, "nothing is to be captured"
            assert found["chosen"] == first["chosen"]
            assert plan_of(found["chosen"]) == "eager"
            layout = layout_of(found["chosen"])
            wanted = [Layout.parse(layout).first_bytes, Layout.parse(layout).rest_bytes] if layout else []
            assert found["caps"] == wanted
            assert torch.equal(found["weights"], first["weights"])
            assert found["report"] == found["chosen"]
            assert "all tune as one, in " in found["sentence"], found["sentence"]
        if is_again:
            assert first["steps"] < 20, "a second run tunes nothing"
        else:
            assert any(layout_of(arm) for arm in first["arms"]), first["arms"]


def test_names_say_what_they_mean() -> None:
    layout = Layout(MIB // 4, 8 * MIB)
    assert layout.name == "b0.25-8"
    assert Layout.parse(layout.name) == layout
    assert (plan_of("native+r1:aot/b1-4"), layout_of("native+r1:aot/b1-4")) == ("native+r1:aot", "b1-4")
    assert (plan_of("eager"), layout_of("eager")) == ("eager", "")
    for wrong in ("", "b1", "1-4", "b1-4-8", "b-1-4"):
        with pytest.raises(ValueError, match="names no bucket layout"):
            Layout.parse(wrong)


def test_a_bucket_is_closed_by_the_gradient_that_fills_it() -> None:
    ready = [(0.1, 3), (0.2, 3), (0.3, 10), (0.4, 4), (0.5, 1)]
    assert buckets_of(ready, Layout(5, 8)) == [(0.2, 6), (0.3, 10), (0.5, 5)]
    assert buckets_of(ready, Layout(100, 100)) == [(0.5, 21)]
    assert buckets_of([], Layout(1, 1)) == []


def test_a_reduction_waits_for_its_gradients_and_for_the_one_before() -> None:
    cost = BucketCost(0.5, 0.1)
    assert predicted_seconds([(1.0, 10), (1.2, 5), (9.0, 1)], cost) == pytest.approx(9.6)
    assert predicted_seconds([(1.0, 10), (1.2, 5)], cost) == pytest.approx(1.0 + 1.5 + 1.0)


def test_costs_are_fitted_to_their_largest_sizes() -> None:
    cost = BucketCost.fitted([(1000, 0.011), (2000, 0.012), (4000, 0.016)])
    assert cost.seconds_per_byte == pytest.approx(2e-6)
    assert cost.seconds == pytest.approx(0.009)
    assert BucketCost.fitted([(1000, 0.011), (2000, 0.005)]).seconds_per_byte > 0


@pytest.mark.parametrize("seed", range(20))
def test_the_best_layouts_are_predicted_no_slower_than_the_others(seed: int) -> None:
    print("seed", seed)
    random_ = random.Random(seed)
    times = sorted(random_.uniform(0, 0.5) for _ in range(60))
    ready = [(seconds, random_.randrange(1 << 10, 4 * MIB)) for seconds in times]
    cost, own = BucketCost(random_.uniform(1e-4, 1e-2), random_.uniform(1e-10, 1e-8)), Layout(MIB, 25 * MIB)
    chosen = best_layouts(ready, cost, own)
    assert len({tuple(buckets_of(ready, layout)) for layout in [*chosen, own]}) == len(chosen) + 1
    seconds = [predicted_seconds(buckets_of(ready, layout), cost) for layout in chosen]
    assert seconds == sorted(seconds)
    for other in (Layout(MIB, 4 * MIB), Layout(MIB // 4, 8 * MIB), Layout(4 * MIB, 64 * MIB)):
        buckets = buckets_of(ready, other)
        is_own = buckets == buckets_of(ready, own)
        assert is_own or other in chosen or predicted_seconds(buckets, cost) >= seconds[-1] - 1e-12


def test_neighbours_are_half_and_twice_as_large() -> None:
    ready = [(0.1 * at, MIB // 2) for at in range(32)]
    assert [layout.name for layout in neighbours(Layout.parse("b1-4"), ready, [])] == ["b1-2", "b1-8"]
    assert [layout.name for layout in neighbours(Layout.parse("b4-4"), ready, [])] == ["b2-2", "b4-8"]


def test_neighbours_have_untried_buckets() -> None:
    large = [(0.1 * at, 2 * MIB) for at in range(8)]
    assert [layout.name for layout in neighbours(Layout.parse("b1-2"), large, [])] == ["b1-4"]
    assert neighbours(Layout.parse("b1-2"), large, [Layout.parse("b2-4")]) == []
