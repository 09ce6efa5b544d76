# SPDX-License-Identifier: Apache-2.0
"""Names of plans, and the plans that are tried after the first decision."""

from __future__ import annotations

import random
import secrets
from typing import Any

import pytest

from agspeed.regions.outcome import Outcome
from agspeed.regions.plan import candidate_of, candidates_of, is_plan, with_swap
from agspeed.tuning.refinements import refinements


class _Region:
    def __init__(self, index: int, usable: list[str], rejected: list[str] = [], num_operators: int = 5) -> None:  # noqa: B006
        self.index, self.num_operators = index, num_operators
        self.outcomes = {name: Outcome(name, "ready", runner=lambda *args: args) for name in usable}
        self.outcomes.update({name: Outcome(name, "rejected") for name in rejected})


def _arms(**ratios: float) -> list[dict[str, Any]]:
    arms = [{"name": name, "state": "ready", "ratio": {"estimate": ratio}} for name, ratio in ratios.items()]
    return [{"name": "eager", "state": "ready", "ratio": None}, *arms]


def test_name_says_what_runs_where() -> None:
    assert [candidate_of("a+r1:b+r12:c", index) for index in (0, 1, 2, 12)] == ["a", "b", "a", "c"]
    assert candidate_of("inductor-max-autotune", 3) == "inductor-max-autotune"
    assert candidates_of("a+r1:b+r12:c") == {"a", "b", "c"}


def test_same_plan_has_one_name() -> None:
    assert with_swap(with_swap("a", 2, "b"), 0, "c") == with_swap(with_swap("a", 0, "c"), 2, "b") == "a+r0:c+r2:b"
    assert with_swap("a+r2:b", 2, "a") == "a"


def test_largest_regions_are_swapped_first() -> None:
    regions = [_Region(0, ["a", "b"]), _Region(1, ["a", "b"], num_operators=50)]
    plans = refinements("a", _arms(a=0.8, b=0.9), regions)
    assert plans == ["a+r1:b", "a+r0:b", "a+r1:graph-eager", "a+r0:graph-eager"]


def test_tiny_regions_are_left_alone_and_rounds_are_short() -> None:
    sizes = [2, 100, 90, 80]
    regions = [_Region(index, ["a", "b"], num_operators=size) for index, size in enumerate(sizes)]
    plans = refinements("a", _arms(a=0.8, b=0.9), regions)
    assert plans == ["a+r1:b", "a+r2:b", "a+r3:b", "a+r1:graph-eager"]


def test_region_that_falls_back_gets_another_candidate() -> None:
    regions = [_Region(0, ["a", "b"]), _Region(1, ["b"], rejected=["a"])]
    plans = refinements("a", _arms(a=0.8, b=0.9), regions)
    assert "a+r1:b" in plans and "a+r1:graph-eager" not in plans


def test_next_round_starts_from_the_choice_and_repeats_nothing() -> None:
    regions = [_Region(0, ["a", "b"]), _Region(1, ["a", "b"])]
    arms = _arms(a=0.8, b=0.9, **{"a+r0:b": 0.7, "a+r1:b": 0.85})
    plans = refinements("a+r0:b", arms, regions)
    assert "a+r0:b+r1:b" in plans and not {"a", "a+r0:b", "a+r1:b"} & set(plans)


@pytest.mark.parametrize(
    ("decided", "ratio", "count"), [("a", 0.8, 1), ("eager", 1.3, 2)], ids=["one region", "far slower than eager"]
)
def test_nothing_to_refine(decided: str, ratio: float, count: int) -> None:
    assert refinements(decided, _arms(a=ratio, b=1.4), [_Region(index, ["a", "b"]) for index in range(count)]) == []


def test_eager_choice_is_challenged_by_mixtures_of_the_best_plan() -> None:
    regions = [_Region(0, ["a", "b"]), _Region(1, ["a", "b"])]
    assert refinements("eager", _arms(a=1.05, b=1.02), regions)[0] == "b+r0:a"


@pytest.mark.parametrize(
    "name", ["eager", "inductor-max-autotune", "a+r1:b+r12:c", "native/b0.25-8", "a+r0:b/b1-4", "a+b"]
)
def test_names_of_plans_are_known(name: str) -> None:
    assert is_plan(name) and candidates_of(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "native+rX:native",
        "native+r1",
        "native+r1:",
        "+r1:a",
        "a/b",
        "a/b1-4/b1-4",
        "a\n",
        "a" * 101,
        None,
        3,
        ["a"],
    ],
)
def test_what_is_no_plan_is_found_out(name: object) -> None:
    assert not is_plan(name)


def test_every_name_that_is_a_plan_can_be_taken_apart() -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    for _ in range(20_000):
        name = "".join(
            chance.choice(("a", "+r", "1", ":", "/", "b1-4", "+", "-", "r", "9" * 7))
            for _ in range(chance.randint(1, 8))
        )
        if is_plan(name):
            assert candidates_of(name) and candidate_of(name, 0), f"seed {seed}: {name!r}"
