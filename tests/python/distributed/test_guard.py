# SPDX-License-Identifier: Apache-2.0
"""If a decision of all ranks becomes slow, all of these ranks measure it again, and no other rank does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from agspeed import native
from agspeed.distributed.messages import Seal
from agspeed.distributed.resync import Resync
from agspeed.distributed.room import Room
from tests.python.distributed import guard_cases
from tests.python.distributed.ranks import Ranks
from tests.python.support.pairs import first_of, thorough

needs_extension = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_TIMEOUT_S = 500
"""Compiling takes long on a busy machine, and so do thousands of steps that are slow on purpose. Neither is a hang."""


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    with Ranks(2, timeout_s=_TIMEOUT_S) as started:
        yield started


def assert_trained_alike(results: Sequence[dict[str, Any]]) -> None:
    for result in results:
        assert torch.equal(result["weights"], result["expected"])
        assert result["hooks"] == 0, "a settled model pays for no hook"
        for key in ("status", "steps", "caps"):
            assert result.get(key) == results[0].get(key), key


@pytest.mark.slow
@needs_extension
@pytest.mark.parametrize(
    "stored",
    first_of(["aot/b0.25-1", "", "aot", "eager/b0.25-1"], 1),
)
def test_a_decision_slow_at_one_rank_is_rolled_back_at_all(two_ranks: Ranks, tmp_path: Path, stored: str) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "stored": stored, "slow_ranks": (1,)}
    results = two_ranks.run(guard_cases.drifting, tmp_path, **arguments)
    assert_trained_alike(results)
    for result in results:
        assert result["decided"] == stored or not stored
        assert result["status"] == "eager", result
        assert result["reason"].startswith(stored or "aot") and "slower than eager" in result["reason"]
        assert result["caps"] == [], "the user's own buckets are back"


@needs_extension
@pytest.mark.thorough
def test_a_drift_long_after_the_decision_is_found(two_ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "slow_ranks": (0,), "after": 400}
    results = two_ranks.run(guard_cases.drifting, tmp_path, "gloo", **arguments)
    assert_trained_alike(results)
    assert results[0]["status"] == "eager", results[0]


@pytest.mark.slow
@needs_extension
@pytest.mark.parametrize(("stored", "status"), [("aot/b0.25-1", "tuned"), thorough("eager/b0.25-1", "eager")])
def test_a_stored_decision_is_measured_once_and_stays(
    two_ranks: Ranks, tmp_path: Path, stored: str, status: str
) -> None:
    arguments = {"cache": str(tmp_path / "cache"), "stored": stored}
    results = two_ranks.run(guard_cases.drifting, tmp_path, **arguments)
    assert_trained_alike(results)
    for result in results:
        assert result["status"] == status, result["reason"]
        assert result["guard"]["blocks"] >= 10
        assert result["guard"]["rollbacks"] == 0
        assert result["caps"] == [1 << 18, 1 << 20], "the chosen buckets are back"


@needs_extension
@pytest.mark.thorough
def test_no_rank_waits_for_the_doubts_of_another(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.run(guard_cases.one_rank_doubts, tmp_path, cache=str(tmp_path / "cache"))
    assert_trained_alike(results)
    assert [result["seeks"] for result in results] == [[False, False], [True, False]]
    assert results[0]["status"] == "tuned"


@needs_extension
def test_buckets_stay_alike_where_a_rank_has_lost_what_was_decided(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.run(guard_cases.lost_at_one_rank, tmp_path, cache=str(tmp_path / "cache"))
    assert all(result["is_sought"] for result in results), "no rank doubted the decision"
    assert_trained_alike(results)
    assert [result["plan"] for result in results] == ["aot", "eager"]
    assert results[0]["caps"] == [1 << 18, 1 << 20]


@needs_extension
@pytest.mark.thorough
def test_two_sessions_in_one_wrapper_do_not_wait_for_each_other(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.run(guard_cases.two_sessions, tmp_path, cache=str(tmp_path / "cache"))
    assert_trained_alike(results)
    assert results[0]["status"] == ["tuned", "tuned"]


class Member:
    """A rank that trains in step with others and asks for a resync between two of its backwards."""

    def __init__(self, store: Any, rank: int, size: int, extra: int) -> None:
        self.num_collectives, self.extra = 0, extra
        self.resync = Resync(Room(store, Seal(b"", "test")), rank, size, lambda: self.num_collectives)
        self.synced_at: list[int] = []

    def begin(self, backward: int, growth: int) -> None:
        self.num_collectives += growth + (self.extra if backward % 5 == 0 else 0)
        if self.resync.is_sought and self.resync.of_backward() == "sync":
            self.synced_at.append(backward)


@pytest.mark.parametrize("seed", first_of(range(40), 10))
def test_all_ranks_sync_in_the_same_backward_or_none_does(seed: int) -> None:
    """Ranks begin each backward in any order, and ask for a resync before or after others have begun theirs. Some wait
    too long, and some count their collectives differently."""
    print("seed", seed)
    rng, store, size = random.Random(seed), HashStore(), 2 + seed % 3
    counts_alike = rng.random() < 0.8
    members = [Member(store, rank, size, 0 if counts_alike else rank) for rank in range(size)]
    seeks = [{rng.randrange(1500 if rng.random() < 0.3 else 300), 2500 + rng.randrange(100)} for _ in members]
    for backward in range(7000):
        growth = 1 + rng.randrange(3)
        order = [(rng.random(), rank) for rank in range(size)]
        for _, rank in sorted(order):
            resync = members[rank].resync
            if backward in seeks[rank] and not (resync.is_sought or resync.is_given_up):
                resync.seek()
            members[rank].begin(backward, growth)
    assert len({tuple(member.synced_at) for member in members}) == 1, [member.synced_at for member in members]
    assert not any(member.resync.is_sought for member in members), "a rank seeks a resync for ever"
    assert counts_alike == bool(members[0].synced_at)
