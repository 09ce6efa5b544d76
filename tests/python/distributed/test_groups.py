# SPDX-License-Identifier: Apache-2.0
"""Groups other than the default one: split from it, made with a bound device, named again, or wrapped by torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed import native
from tests.python.distributed import groups
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

SIZE = 4
TOTAL = float(sum(range(SIZE)))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(SIZE) as started:
        yield started


def test_ranks_that_do_not_answer_in_time_show_where_they_are(tmp_path: Path) -> None:
    with Ranks(2, timeout_s=4) as own, pytest.raises(AssertionError, match="rank 1 of 2 did not answer") as raised:
        own.run(groups.late, tmp_path, seconds=60.0)
    assert "groups.py" in str(raised.value) and "in late" in str(raised.value)


def test_new_groups_beside_a_bound_device_leave_the_others_out(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(groups.new_groups_beside_a_device, tmp_path)
    assert found == [[1.0, TOTAL]] * 2 + [[None, TOTAL]] * (SIZE - 2)


def test_ranks_in_no_part_of_a_split_group_get_none(ranks: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(groups.split_beside_a_device, tmp_path)):
        assert found == ([1.0, 1.0, 1.0] if rank < 2 else [None, float(rank), None])


def test_a_part_has_its_own_timeout(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(groups.split_with_a_timeout, tmp_path) == [[30.0, 30.0, 5.0]] * SIZE


def test_a_name_may_be_given_again(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(groups.named_again, tmp_path, times=3)
    assert found == [[1.0] * 3] * 2 + [[None] * 3] * (SIZE - 2)


def test_a_store_serves_one_default_group_after_another(ranks: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(ranks.run(groups.meshes_after_each_other, tmp_path, times=3)):
        row = float(sum(other for other in range(SIZE) if other // 2 == rank // 2))
        column = float(sum(other for other in range(SIZE) if other % 2 == rank % 2))
        assert found == [(column, row)] * 3


def test_a_group_whose_first_rank_does_not_come_is_named(ranks: Ranks, tmp_path: Path) -> None:
    for rank, message in enumerate(ranks.run(groups.made_by_others_only, tmp_path)):
        if rank > 0:
            assert f"DistBackendError: rank {rank} of group '" in message and "timed out" in message
            assert "rank 0 of it did not make the group within 0.5 s" in message


def test_a_store_serves_others_while_a_group_is_made(ranks: Ranks, tmp_path: Path) -> None:
    assert all(ranks.run(groups.store_used_while_a_group_is_made, tmp_path))


def test_a_group_is_made_again_over_the_connection_that_is_there(ranks: Ranks, tmp_path: Path) -> None:
    for first, *others in ranks.run(groups.connections_to_a_store, tmp_path, times=3):
        assert others == [first, first]


def test_tools_see_through_torchs_debugging_wrapper(tmp_path: Path) -> None:
    with Ranks(2, prepare=groups.detailed) as ranks:
        assert ranks.run(groups.tools_in_detail, tmp_path) == [("_ProcessGroupWrapper", 1, "all_reduce")] * 2
