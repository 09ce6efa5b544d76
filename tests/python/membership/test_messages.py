# SPDX-License-Identifier: Apache-2.0
"""Messages between members and the coordinator, and the store in which members find each other."""

from __future__ import annotations

import base64
import json

import pytest

from agspeed.launch.placement import places
from agspeed.membership import epoch_store
from agspeed.membership.actions import Epoch
from agspeed.membership.epoch_store import Answer, EpochStore
from agspeed.membership.messages import MOST_BYTES, Lines, MessageError, Place, line_of


def text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def test_messages_may_come_in_pieces() -> None:
    lines = Lines()
    data = line_of("lost", 3) + line_of("ready", [1, True, 20, False])
    found = [message for byte in data for message in lines.add(bytes([byte]))]
    assert found == [("lost", 3), ("ready", [1, True, 20, False])]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\n", b"[1]\n", b'{"a": 1, "b": 2}\n', b"\xff\n", b"[" * 1000 + b"\n"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        list(Lines().add(data))


def test_a_message_without_an_end_is_refused() -> None:
    with pytest.raises(MessageError, match="a message of more than"):
        list(Lines().add(b"x" * (MOST_BYTES + 1)))


@pytest.mark.parametrize(
    "change",
    [{"rank": -1}, {"rank": "0"}, {"size": None}, {"number": 1.5}, {"more": 1}, {"source": None}, {"has_lost": 0}],
    ids=str,
)
def test_a_wrong_place_is_refused(change: dict[str, object]) -> None:
    (place,) = places(Epoch(1, (7,), 0, has_lost=False), [0])
    assert Place.of(json.loads(json.dumps(place.to_json()))) == place
    with pytest.raises(MessageError):
        Place.of(place.to_json() | change)


def test_places_count_ranks_of_each_host_and_of_equal_local_rank() -> None:
    found = places(Epoch(4, (0, 1, 2, 3, 4), 2, has_lost=True), [0, 1, 0, 1, 1])
    assert [(each.rank, each.local_rank, each.local_size) for each in found] == [
        (0, 0, 2), (1, 0, 3), (2, 1, 2), (3, 1, 3), (4, 2, 3)
    ]  # fmt: skip
    assert [(each.cross_rank, each.cross_size) for each in found] == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)]


def test_requests_wait_for_keys_and_end_with_the_epoch() -> None:
    store = EpochStore()
    assert store.begin(1) == []
    assert store.ask(0, 1, 1, "get", ["a"]) == store.ask(1, 1, 1, "wait", [["a", "b"]]) == []
    assert store.ask(2, 1, 1, "set", ["a", text("x")]) == [Answer(2, 1, True, 0), Answer(0, 1, True, text("x"))]
    (answer,) = store.begin(2)
    assert answer[:3] == (1, 1, False)
    ((*_, is_ok, reason),) = store.ask(0, 2, 1, "get", ["a"])
    assert not is_ok and reason == "the epoch is over"
    assert store.ask(0, 3, 2, "check", [["a"]]) == [Answer(0, 3, True, False)]


def test_counters_and_swaps_are_torchs() -> None:
    store = EpochStore()
    store.begin(1)

    def ask(operation: str, *arguments: object) -> object:
        ((_, _, is_ok, value),) = store.ask(0, 1, 1, operation, list(arguments))
        return value if is_ok else None

    assert [ask("add", "n", number) for number in (2, 3, -1)] == [2, 5, 4]
    assert ask("get", "n") == text("4")
    assert ask("swap", "k", "", text("a")) == text("a")
    assert ask("swap", "k", text("b"), text("c")) == text("a")
    assert ask("swap", "k", text("a"), text("c")) == text("c")
    assert ask("swap", "absent", text("a"), text("c")) == text("a")
    assert ask("delete", "k") is True and ask("delete", "k") is False and ask("count") == 1
    assert ask("add", "k", "one") is None and ask("format", "k") is None


def test_a_member_that_has_ended_gets_no_answer() -> None:
    store = EpochStore()
    store.begin(1)
    store.ask(0, 1, 1, "get", ["a"])
    store.forget(0)
    assert store.ask(1, 1, 1, "set", ["a", text("x")]) == [Answer(1, 1, True, 0)]


def test_a_key_that_is_written_again_and_again_needs_the_room_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_store, "_MOST_BYTES", 100)
    store = EpochStore()
    store.begin(1)
    for operation, arguments, is_ok in (
        *[("set", ["key", "x" * 60], True)] * 10,
        ("set", ["more", "x" * 60], False),
        ("delete", ["key"], True),
        ("set", ["more", "x" * 60], True),
    ):
        ((*_, found, value),) = store.ask(0, 1, 1, operation, arguments)
        assert found == is_ok, value
