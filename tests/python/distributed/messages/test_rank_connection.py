# SPDX-License-Identifier: Apache-2.0
"""Ranks announce themselves in a store, and all of them find rank 0's reply in the same backward. No rank is started:
each is an object, and a dictionary is the store.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agspeed.distributed import rank_connection
from agspeed.distributed.announcements import Announcement, Reply
from agspeed.distributed.messages import MessageError, Seal
from agspeed.distributed.rank_connection import RankConnection
from agspeed.distributed.room import Room


class Store:
    """The part of a store that a room uses."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(rank_connection, "room_of", lambda group, purpose: (Room(store, Seal(b"", "room")), "room"))
    return store


def _connected(rank: int, size: int = 2, model: str = "Net", home: str = "node0") -> RankConnection:
    group: Any = SimpleNamespace(process_group=None, rank=rank, size=size)
    return RankConnection(group, Announcement(f"rank {rank}", {"model": model}, {}, home))


def _replies(ranks: list[RankConnection], backward: int, *, is_due: bool) -> list[Reply | None]:
    return [rank.find_reply(backward, is_due=is_due) for rank in ranks]


def test_all_ranks_find_the_reply_in_the_backward_after_the_one_that_wrote_it(store: Store) -> None:
    ranks = [_connected(0), _connected(1)]
    for backward in (1, 2):
        assert _replies(ranks, backward, is_due=False) == [None, None]
    assert _replies(ranks, 3, is_due=True) == [None, None]
    replies = _replies(ranks, 4, is_due=True)
    assert replies[0] == replies[1] and replies[0] is not None
    assert replies[0].names == ["rank 0", "rank 1"] and replies[0].refused is None
    assert [rank.host_group.is_first for rank in ranks if rank.host_group is not None] == [True, False]


def test_ranks_on_different_hosts_have_no_host_group(store: Store) -> None:
    ranks = [_connected(0), _connected(1, home="node1")]
    for backward in (2, 3):
        _replies(ranks, backward, is_due=True)
    assert [rank.host_group for rank in ranks] == [None, None]


@pytest.mark.parametrize(
    ("model", "num_there", "words"), [("Other", 2, "another model"), ("Net", 1, "rank 1: no agspeed.optimize there")]
)
def test_ranks_that_do_not_fit_are_refused_before_tuning_is_due(
    store: Store, model: str, num_there: int, words: str
) -> None:
    ranks = [_connected(rank, model=name) for rank, name in enumerate(("Net", model)[:num_there])]
    _replies(ranks, 2, is_due=False)
    for reply in _replies(ranks, 3, is_due=False):
        assert reply is not None and reply.refused is not None and words in reply.refused


def test_a_reply_that_was_copied_from_an_earlier_job_is_refused(store: Store) -> None:
    earlier = [_connected(0), _connected(1)]
    _replies(earlier, 2, is_due=True)
    late = _connected(1)
    with pytest.raises(MessageError):
        late.find_reply(3, is_due=True)


def test_closing_without_an_exchange_does_nothing(store: Store) -> None:
    connection = _connected(0)
    connection.close()
    connection.close()
