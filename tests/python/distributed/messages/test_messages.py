# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks: only messages with the job's key count, and a stranger's are refused with a sentence."""

from __future__ import annotations

import datetime
import json
import os
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import distributed

from agspeed.cli import net_ranks
from agspeed.cli.checks import Check
from agspeed.distributed import messages, replicas, resync, standstill
from agspeed.distributed.announcements import Announcement, Reply, ReplySlot
from agspeed.distributed.exchange import Exchange
from agspeed.distributed.layouts import Layout
from agspeed.distributed.messages import MOST_BYTES, MessageError, Seal, parsed, yes
from agspeed.distributed.resync import Resync
from agspeed.distributed.room import Room
from agspeed.distributed.standstill import Standstill
from agspeed.distributed.stragglers.judge import Finding
from agspeed.distributed.stragglers.watch import Verdict
from agspeed.distributed.stragglers.windows import RailRate, Window
from agspeed.errors import AgspeedError, UserError
from agspeed.netprobe.model import HostRecord, Path, PortState, Rail
from agspeed.netprobe.wire import Connection, PeerError
from agspeed.transfer import objects
from agspeed.tuning.child import answers
from tests.python.distributed.messages import hostile_messages

KEY, OTHER = b"a key of sixteen bytes", b"another key of sixteen bytes"
NUM_INPUTS = int(os.environ.get("AG_TEST_INPUTS", "3000"))
"""For each parser."""
ANNOUNCEMENT = Announcement("rank 0 on node0", {"torch": "2.11"}, {"threads": "1"}, "node0 /cache")
REPLY = asdict(Reply.made(3, [Announcement.parse(ANNOUNCEMENT.to_json())] * 2, ["rank 0", "rank 1"], None))


def room(key: bytes, store: Any, *place: str) -> Room:
    return Room(store, Seal(key, *(place or ("a room",))))


# --- proofs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [b"", KEY])
def test_what_a_rank_writes_is_read_by_ranks_with_its_key(key: bytes) -> None:
    store = distributed.HashStore()
    room(key, store).put("announcement/0", ANNOUNCEMENT.to_json())
    found = room(key, store).find("announcement/0", Announcement.parse)
    assert found is not None and (found.who, found.nonce) == (ANNOUNCEMENT.who, ANNOUNCEMENT.nonce)
    assert room(key, store).find("announcement/1", Announcement.parse) is None


@pytest.mark.parametrize(
    ("writers", "readers", "place", "words"),
    [
        (b"", KEY, "a room", "does not prove that its writer has the job key"),
        (OTHER, KEY, "a room", "was written with another job key"),
        (KEY, KEY, "another room", "or copied from elsewhere"),
        (KEY, b"", "a room", "this rank has none: give all ranks the same key"),
    ],
)
def test_messages_without_the_jobs_key_are_refused(writers: bytes, readers: bytes, place: str, words: str) -> None:
    store = distributed.HashStore()
    room(writers, store, place).put("reply", REPLY)
    with pytest.raises(MessageError, match=words) as raised:
        ReplySlot(room(readers, store), 2).of_backward(4)
    assert str(raised.value).startswith("'reply' in the job's store ")


def test_a_message_counts_at_its_own_place_alone() -> None:
    """An attacker could copy one rank's message to another rank's key, or reuse a message of an earlier resync."""
    store = distributed.HashStore()
    ours = room(KEY, store)
    ours.put("sought/0", True)
    store.set("sought/1", store.get("sought/0").decode())
    assert ours.find("sought/0", yes)
    with pytest.raises(MessageError, match="copied from elsewhere"):
        ours.find("sought/1", yes)
    ours.bind("0123456789abcdef")
    with pytest.raises(MessageError, match="copied from elsewhere"):
        ours.find("sought/0", yes)


def test_a_message_says_nothing_of_the_key() -> None:
    message = Seal(KEY, "a room").sealed(b"content")
    assert KEY not in message and message.endswith(b" content") and len(message) == 64 + 1 + 7
    assert repr(KEY) not in repr(Seal(KEY, "a room"))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"", "is no message of this version"),
        (b'{"names": ["a"], "token": "x/../../home"}', "is no message of this version"),
        (b"-[]", "is no message of this version"),
        (b"- " + b"[" * 100_000, "nested more than 100 deep"),
        (b"- NaN", "NaN is not a number"),
        (b"- " + b" " * MOST_BYTES, "at most"),
        (b"- \xff", "UnicodeDecodeError"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_message_is_refused_in_a_sentence(message: bytes, words: str) -> None:
    store = distributed.HashStore()
    store.set("reply", message)
    with pytest.raises(MessageError, match=words) as raised:
        ReplySlot(room(b"", store), 2).of_backward(4)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token": "x/../../home/user"}, "no text of at most 16 printable letters"),
        ({"token": "../../home/users"}, "a text that is not"),
        ({"token": 5}, "no text"),
        ({"names": ["rank 0"]}, "no list of 2 texts"),
        ({"names": ["rank 0", "\x1b[2J"]}, "printable"),
        ({"homes": ["/cache", "/cache"]}, "a text that is not"),
        ({"backward": True}, "no number"),
        ({"backward": -1}, "no number"),
        ({"refused": ["no"]}, "no text"),
    ],
    ids=str,
)
def test_a_reply_of_a_stranger_is_refused(change: dict[str, Any], words: str) -> None:
    """Without a key anyone may write, so the content must still be one that a rank could have written."""
    store = distributed.HashStore()
    room(b"", store).put("reply", {**REPLY, **change})
    with pytest.raises(MessageError, match=words):
        ReplySlot(room(b"", store), 2).of_backward(4)


def test_an_announcement_is_cut_to_what_others_accept() -> None:
    odd = Announcement("rank 0 on \x1b[2Jnode", {"setting": "x" * 9000}, {"a\nb": "\ud800"}, "/cache\ud800")
    found = Announcement.parse(json.loads(json.dumps(odd.to_json())))
    assert found.who == "rank 0 on  [2Jnode" and set(found.may_differ) == {"a b"}


# --- the readers ------------------------------------------------------------------------------------------------------


def test_a_stranger_neither_ends_a_standstill_nor_makes_it_longer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "_SILENCE_S", 0.5)
    store = distributed.HashStore()
    ranks = [Standstill(room(KEY, store), rank, 2) for rank in range(2)]
    for key in ("through/1/1", "beat/1"):
        store.set(key, "- true")
    ranks[0].begin()
    ranks[0].end()
    assert "does not prove that its writer has the job key" in caplog.text
    assert ranks[0]._num_ranks == 2, "it waits for others again"


def test_resyncs_that_a_stranger_ends_are_not_counted_for_ever() -> None:
    class Over:
        num_requests = 0

        def check(self, keys: list[str]) -> bool:
            self.num_requests += 1
            return keys[0].endswith("over")

        def get(self, key: str) -> bytes:
            return b"- true"

    store = Over()
    rank = Resync(room(b"", store), 0, 2, lambda: 0)
    rank.seek()
    assert rank.of_backward() == "over" and rank.is_given_up
    assert store.num_requests < 100


class Ranks:
    """Replaces the backend below an exchange: `gather` returns the ranks' packets, call by call."""

    def __init__(self, *calls: list[bytes]) -> None:
        self.calls = list(calls)

    def gather(self, data: bytes, size: int, timeout: object) -> list[bytes]:
        return [packet[:size].ljust(size, b"\0") for packet in self.calls.pop(0)]


def exchange(*calls: list[bytes], key: bytes = KEY) -> Exchange:
    made = object.__new__(Exchange)
    made._rank, made._size, made._number, made._seal = 0, 2, 0, Seal(key, "exchange")
    made._timeout = datetime.timedelta(seconds=1)
    made._gather = Ranks(*calls).gather  # type: ignore[method-assign]
    return made


def packet(content: bytes, rank: int, number: int = 1, key: bytes = KEY) -> bytes:
    sealed = Seal(key, "exchange").at(str(number), str(rank)).sealed(content)
    return len(sealed).to_bytes(8, "little") + sealed


def test_records_are_exchanged_with_proofs_of_the_key() -> None:
    assert exchange([packet(b"mine", 0), packet(b"theirs", 1)]).of_records(b"mine") == [b"mine", b"theirs"]
    long = b"x" * 5000
    both = [packet(b"mine", 0), packet(long, 1)]
    assert exchange(both, both).of_records(b"mine") == [b"mine", long]


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (packet(b"theirs", 1, key=b""), "rank 1's record does not prove that its writer has the job key"),
        (packet(b"theirs", 1, key=OTHER), "rank 1's record was written with another job key"),
        (packet(b"mine", 0), "rank 1's record was written with another job key, or copied"),
        (packet(b"theirs", 1, number=2), "rank 1's record was written with another job key, or copied"),
        ((2**64 - 1).to_bytes(8, "little"), f"rank 1's record has {2**64 - 1} bytes, at most {MOST_BYTES}"),
        (bytes(8), "rank 1's record is no message of this version"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_records_of_strangers_are_refused(theirs: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        exchange([packet(b"mine", 0), theirs]).of_records(b"mine")


# --- any bytes --------------------------------------------------------------------------------------------------------


class Lines(Connection):
    """A connection that has received one line."""

    def __init__(self, line: bytes) -> None:
        self._unread = line + b"\n"


def _doctors(found: Any) -> None:
    with net_ranks._understanding():
        row = found["record"]
        HostRecord.from_json(row)
        list(map(net_ranks._check, found["wrong"][:10]))


def _json(parse: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    return lambda content: parsed(content, "a message", parse)


def _plain(parse: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    """Wraps a parser of doctors: its errors become refusals, as its callers make them."""

    def read(content: bytes) -> Any:
        try:
            return parse(Lines(content).receive_json())
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(str(error)) from None

    return read


RAIL = Rail("eth0", "10.0.0.1", 24, 1500, (29500,), 1)
HOST = HostRecord("node0", (RAIL,), {"lo": "loopback"})
PATH = Path("a", "b", "eth0", "eth0", "10.0.0.2", [PortState(1), PortState(2, "is silent")], "equal", 1e-3, 0.0, 1500)
ANSWER = {"id": 1, "state": "ready", "reason": "", "compile_seconds": 1.5, "gate": {"verdict": "accepted"}}
ANSWER |= {
    "twins": ["a"],
    "proof": {"code_digest": "12", "gate": {}, "layouts": [[0, [1, 2]]]},
    "vector_isa": {"12": True},
}
WINDOW = Window(3, "node0", 700, 0.2, 0.01, 0.03, 0.16, 0.05, rails=(RailRate("eth0", 1e8), RailRate("eth1", 0.0)))
FINDING = Finding("rail", 1, "node0", 0.6, 700, "eth1", until_step=900, num_ranks=2, is_starved=True)
PARSERS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "announcement": (_json(Announcement.parse), ANNOUNCEMENT.to_json()),
    "reply": (_json(lambda found: Reply.parse(found, 2)), REPLY),
    "resync": (_json(resync._begun), [1, 2, 3]),
    "beat": (_json(Standstill(room(b"", None), 0, 2)._beat_of), [1, 7]),
    "replicas": (_json(replicas._numbers), [3, 1 << 40, 5]),
    "replicas' difference": (_json(replicas._sentence), "rank 1 has other bits"),
    "window": (_json(Window.parse), WINDOW.to_json()),
    "verdict": (_json(Verdict.parse), Verdict(9, (replace(FINDING, until_step=None),), (FINDING,)).to_json()),
    "layout": (_json(lambda found: Layout.parse(messages.text(found, 100))), "b0.25-8"),
    "answer": (lambda content: answers.understood(answers.read(content)), ANSWER),
    "rail": (_plain(Rail.from_json), RAIL.to_json()),
    "host": (_plain(HostRecord.from_json), HOST.to_json()),
    "path": (_plain(Path.from_json), PATH.to_json()),
    "doctor's host": (
        lambda content: _doctors(net_ranks._parsed(content)),
        {"record": HOST.to_json(), "wrong": [Check("a", "warn", "b")]},
    ),
}


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes_are_read_or_refused(name: str) -> None:
    """To try other seeds and more inputs, call `fuzz`."""
    assert fuzz(name, seed=0, num_inputs=NUM_INPUTS) > 0, "no input was read"


def fuzz(name: str, seed: int, num_inputs: int) -> int:
    """Returns the number of inputs that the parser accepted. Raises any error that is not a refusal."""
    parse, valid = PARSERS[name]
    rng = random.Random(seed)
    num_read = 0
    for number in range(num_inputs):
        content = hostile_messages.text(rng, valid)
        try:
            num_read += parse(content) is not None or name == "doctor's host"
        except AgspeedError:
            pass
        except BaseException:
            print(f"parser {name}, seed {seed}, input {number}, {len(content)} bytes: {content[:500]!r}")
            raise
    return num_read


def test_windows_and_verdicts_arrive_as_they_were_written() -> None:
    assert Window.parse(json.loads(json.dumps(WINDOW.to_json()))) == WINDOW
    verdict = Verdict(9, (replace(FINDING, until_step=None),), (FINDING,))
    assert Verdict.parse(json.loads(json.dumps(verdict.to_json()))) == verdict


def test_a_message_of_which_anything_was_changed_is_refused() -> None:
    seed = 0
    rng, seal = random.Random(seed), Seal(KEY, "a room")
    valid = seal.sealed(b'{"token": "0123456789abcdef"}')
    for number in range(NUM_INPUTS):
        message = bytearray(valid)
        message[rng.randrange(len(message))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.2:
            message = message[: rng.randrange(len(message))]
        with pytest.raises(MessageError):
            print(f"seed {seed}, input {number}: {bytes(message)!r}", seal.opened(bytes(message), "a message"))


def test_any_bytes_are_an_object_or_refused() -> None:
    seed = 0
    rng = random.Random(seed)
    tensor = torch.arange(6).reshape(2, 3)
    valid = objects.encode({"a": [1, -2.5, "text", b"bytes", None], "b": (tensor, torch.float32)})
    for number in range(NUM_INPUTS):
        content = bytearray(valid)
        for _ in range(rng.randrange(1, 6)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        data = bytes(content[: rng.randrange(len(content) + 1)] if rng.random() < 0.3 else content)
        try:
            objects.decode(data)
        except UserError:
            pass
        except BaseException:
            print(f"seed {seed}, input {number}, {len(data)} bytes: {data!r}")
            raise
