# SPDX-License-Identifier: Apache-2.0
"""Ranks continue together after a pause of seconds, and never wait for a rank that sends nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from torch import distributed

from agspeed.distributed import standstill
from agspeed.distributed.messages import Seal
from agspeed.distributed.room import Room
from agspeed.distributed.standstill import Standstill


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_BEAT_S", 0.05), ("_SILENCE_S", 1.0)):
        monkeypatch.setattr(standstill, name, seconds)


def ranks(size: int, store: Any = None) -> list[Standstill]:
    room = Room(store or distributed.HashStore(), Seal(b"", "test"))
    return [Standstill(room, rank, size) for rank in range(size)]


def test_who_is_through_waits_for_as_long_as_another_is_at_it() -> None:
    first, last = ranks(2)
    ended: list[str] = []

    def slow() -> None:
        last.begin()
        time.sleep(2.5)
        ended.append("last")
        last.end()

    thread = threading.Thread(target=slow)
    thread.start()
    first.begin()
    first.end()
    ended.append("first")
    thread.join()
    assert ended == ["last", "first"]


def test_one_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "LONGEST_S", 1e9)
    first, late = ranks(2)
    first.begin()
    first.end()
    late.begin()
    late.end()
    assert not first.is_begun and not late.is_begun


def test_all_have_an_end_however_long_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "LONGEST_S", 0.5)
    monkeypatch.setattr(standstill, "_SILENCE_S", 1e9)
    first, busy = ranks(2)
    busy.begin()
    first.begin()
    first.end()
    assert busy.is_begun
    busy.end()


def test_each_waits_for_the_others_of_its_own_time() -> None:
    first, second = ranks(2)
    for _ in range(3):
        threads = []
        for rank in (first, second):
            rank.begin()
            threads.append(threading.Thread(target=rank.end))
            threads[-1].start()
        for thread in threads:
            thread.join()
    assert [first._number, second._number] == [3, 3]


class Broken:
    """Behaves like a store whose host is gone."""

    def __init__(self) -> None:
        self.num_requests = 0

    def set(self, key: str, value: str) -> None:
        self.num_requests += 1
        raise RuntimeError("connection refused")


def test_without_a_store_no_rank_waits_any_longer() -> None:
    store = Broken()
    (rank, _) = ranks(2, store)
    for _ in range(3):
        rank.begin()
        rank.end()
    assert store.num_requests == 1
