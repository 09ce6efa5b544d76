# SPDX-License-Identifier: Apache-2.0
"""Handles, groups and stores that outlive each other or do not, and several threads in one group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.python.distributed import lifetimes
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as started:
        yield started


def test_a_future_may_be_asked_for_after_the_group(ranks: Ranks, tmp_path: Path) -> None:
    for value in ranks.run(lifetimes.future_after_the_group, tmp_path):
        assert torch.equal(value, torch.full((1000,), float(ranks.size)))


def test_a_group_may_end_while_a_thread_waits(ranks: Ranks, tmp_path: Path) -> None:
    for heard in ranks.run(lifetimes.waiting_while_the_group_ends, tmp_path):
        assert heard.startswith("DistBackendError"), heard


def test_results_arrive_although_the_handle_is_dropped(ranks: Ranks, tmp_path: Path) -> None:
    expected = torch.ones(4, 6)
    expected[:, ::2] = ranks.size
    for whole in ranks.run(lifetimes.dropped_handle, tmp_path):
        assert torch.equal(whole, expected)


def test_works_may_be_polled_while_futures_end(ranks: Ranks, tmp_path: Path) -> None:
    for total in ranks.run(lifetimes.polled_beside_futures, tmp_path, times=500):
        assert total == 500 * 4 * ranks.size


def test_threads_do_not_coalesce_for_each_other(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(lifetimes.messages_beside_coalesced_calls, tmp_path, rounds=2000):
        assert found and all(found), f"{found.count(False)} of {len(found)}"


def test_a_rank_that_waits_in_the_store_can_be_met(tmp_path: Path) -> None:
    with Ranks(3, AGSPEED_PEER_TIMEOUT_MS="2000") as ranks:
        assert ranks.run(lifetimes.reduced_while_a_rank_waits_in_the_store, tmp_path) == [3.0, 3.0, 3.0]
