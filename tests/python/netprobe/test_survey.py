# SPDX-License-Identifier: Apache-2.0
"""Checks of peers on loopback: good peers, and peers that refuse, are silent, answer slowly or send nonsense."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from agspeed.errors import AgspeedError
from agspeed.netprobe import HostRecord, Listener, Rail, Survey, findings, keys, peers, survey_peers
from agspeed.netprobe.model import pair_rails
from agspeed.netprobe.parallel import all_at_once
from agspeed.netprobe.wire import Connection, PeerError, connect
from tests.python.netprobe.conftest import KEY, LOOPBACK_MTU, host

pytestmark = pytest.mark.timeout(90)
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "STREAM_S", 0.05)
    monkeypatch.setattr(peers, "_MEASURE_S", LIMIT_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def sentences(survey: Survey) -> str:
    return "\n".join(f"{found.status} {found.name}: {found.detail} | {found.remedy}" for found in findings(survey))


# --- good peers -------------------------------------------------------------------------------------------------------


def test_all_is_found_out_both_ways_on_every_rail() -> None:
    port = free_port()
    with Listener(host("there", 2, 2), KEY, [port]):
        survey = survey_peers(["127.0.0.2"], host("here", 1, 1), KEY, port)
    ways = {(path.source, path.destination, path.rail): path for path in survey.paths}
    assert set(ways) == {(*way, rail) for way in (("here", "there"), ("there", "here")) for rail in ("rail0", "rail1")}
    for path in ways.values():
        assert path.problem == "" and path.key == keys.EQUAL and not any(state.problem for state in path.ports)
        assert path.round_trip_s is not None and 0 < path.round_trip_s < LIMIT_S
        assert path.clock_ahead_s is not None and abs(path.clock_ahead_s) <= path.round_trip_s
        assert path.packet_bytes == path.wanted_packet_bytes == LOOPBACK_MTU
        assert path.bits_per_second is not None and path.bits_per_second > 0
    assert port in [state.port for state in ways["here", "there", "rail0"].ports]
    assert [(found.status, found.name) for found in findings(survey)] == [("ok", "pairs")]


def test_hosts_of_one_name_and_rails_without_partner_are_distinguished() -> None:
    port = free_port()
    with Listener(host("node", 2), b"", [port]):
        survey = survey_peers(["127.0.0.2"], host("node", 1, 1), b"", port)
    assert [each.name for each in survey.hosts] == ["node", "node (127.0.0.2)"]
    assert "fail rail: rail1 from node to node (127.0.0.2): 127.0.1.0/24 has no rail" in sentences(survey)
    assert "export AGSPEED_SOCKET_IFNAME=rail0" in sentences(survey)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (KEY[::-1], "the job keys are different"),
        (b"", "the job keys are different: the other host has none"),
    ],
)
def test_another_key_is_reported_and_nothing_else(theirs: bytes, words: str) -> None:
    port = free_port()
    with Listener(host("there", 2), theirs, [port]):
        survey = survey_peers(["127.0.0.2"], host("here", 1), KEY, port)
    [found] = findings(survey)
    assert (found.status, found.detail) == ("fail", f"here and 127.0.0.2: {words}") and "job.key" in found.remedy
    assert survey.paths == [] and len(survey.hosts) == 1


# --- peers that misbehave ---------------------------------------------------------------------------------------------


@contextmanager
def peer_that(serves: Callable[[socket.socket], None] | None) -> Iterator[int]:
    """A program at 127.0.0.2 that handles each connection with `serves`; None accepts none. Yields its port."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.2", 0)))
        port = int(listening.getsockname()[1])
        accepted: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    accepted.append(listening.accept()[0])
                    assert serves is not None
                    serves(accepted[-1])
                except OSError:
                    return

        if serves is not None:
            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
        yield port
        listening.shutdown(socket.SHUT_RDWR)
        for each in accepted:
            each.close()


def trickle(connection: socket.socket) -> None:
    for byte in keys._hello(KEY):
        connection.send(bytes([byte]))
        time.sleep(1)


@pytest.mark.parametrize(
    ("serves", "words"),
    [
        (None, "accepts connections, but does not answer in time"),
        (trickle, "accepts connections, but does not answer in time"),
        (socket.socket.close, "closed the connection"),
        (lambda made: made.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64)), "is answered by another program"),
        (lambda made: made.sendall(keys._hello(KEY) + bytes(33)), "the job keys are different"),
    ],
    ids=["silent", "trickling", "closing", "another program", "refusing"],
)
def test_a_peer_that_misbehaves_is_named(serves: Callable[[socket.socket], None] | None, words: str) -> None:
    with peer_that(serves) as port:
        survey = survey_peers(["127.0.0.2"], host("here", 1), KEY, port)
    [found] = findings(survey)
    assert found.status == "fail" and "127.0.0.2" in found.detail and words in found.detail and found.remedy


def test_a_peer_that_refuses_and_one_without_an_address_are_named_beside_a_good_one() -> None:
    port = free_port()
    with Listener(host("there", 2), KEY, ()) as listener:
        open_port = listener.record.rails[0].tcp_ports[0]
        survey = survey_peers(["127.0.0.2", "127.0.0.3", "no host"], host("here", 1), KEY, open_port)
    assert [each.name for each in survey.hosts] == ["here", "there"], port
    text = sentences(survey)
    assert "fail peer: 127.0.0.3 refuses connections" in text and "agspeed doctor --listen" in text
    assert "fail peer: no host is not a name or address" in text


class Half(Listener):
    """Proves its key and describes itself, then handles each request with `mischief`."""

    mischief: Callable[[Connection], None]

    def _answer(self, connection: Connection) -> bool:
        request = connection.receive_json()
        if request["do"] == "describe":
            connection.send_json(self.record.to_json())
            return True
        type(self).mischief(connection)
        return True


@pytest.mark.parametrize(
    ("mischief", "words"),
    [
        (lambda connection: connection.socket.close(), "closed the connection"),
        (lambda _: time.sleep(0.01), "does not answer in time"),
        (lambda connection: connection.send(b"{}\n"), "sends a message that this version does not understand"),
        (lambda connection: connection.send(b"[1]\n"), "sent something that no `agspeed doctor` sends"),
        (lambda connection: connection.send(b"x" * (1 << 17)), "sent a line of more than 65536 bytes"),
    ],
    ids=["closing", "silent", "empty", "other", "endless"],
)
def test_a_peer_that_fails_later_is_named_by_rail(mischief: Callable[[Connection], None], words: str) -> None:
    port = free_port()
    listener = type("Mischievous", (Half,), {"mischief": staticmethod(mischief)})
    with listener(host("there", 2), KEY, [port]):
        survey = survey_peers(["127.0.0.2"], host("here", 1), KEY, port)
    text = sentences(survey)
    assert "fail peer: rail0 from here to there: 127.0.0.2" in text and words in text


@pytest.mark.parametrize(
    "change",
    [
        {"rails": [{"name": "rail0"}]},
        {"rails": "all"},
        {"name": 7},
        {"left_out": "everything"},
        {"rails": [{**host("x", 2).rails[0].to_json(), "mtu": -1}]},
        {"rails": [{**host("x", 2).rails[0].to_json(), "address": "nowhere"}]},
        {"rails": [{**host("x", 2).rails[0].to_json(), "tcp_ports": [1 << 20]}]},
    ],
)
def test_a_peer_that_describes_itself_wrongly_is_named(change: dict[str, object]) -> None:
    def describe(connection: socket.socket) -> None:
        with Connection(connection, time.monotonic() + LIMIT_S) as made:
            assert keys.is_proven(made, KEY)
            made.receive_json()
            made.send_json({**host("there", 2).to_json(), **change})

    with peer_that(describe) as port:
        survey = survey_peers(["127.0.0.2"], host("here", 1), KEY, port)
    [found] = findings(survey)
    assert "127.0.0.2 describes itself in a way that this version does not understand" in found.detail


def test_texts_of_other_hosts_are_shown_without_control_characters() -> None:
    found = HostRecord.from_json({**host("a", 1).to_json(), "name": "node\x1b[2J\n1" + "x" * 300})
    assert found.name.startswith("node[2J1x") and len(found.name) == 200


def test_a_slow_peer_is_reported() -> None:
    port = free_port()

    def slowly(connection: Connection) -> None:
        time.sleep(0.2)
        connection.send_json({"time": time.time()})

    listener = type("Slow", (Half,), {"mischief": staticmethod(slowly)})
    with listener(host("there", 2), KEY, [port]):
        survey = survey_peers(["127.0.0.2"], host("here", 1), KEY, port)
    assert "warn round trip: rail0 from here to there: answers take 2" in sentences(survey)


# --- the listener -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "format the disk"},
        {"do": "send", "seconds": 1e9},
        {"do": "receive", "seconds": "long"},
        {"do": "look back", "rail": {"address": "nowhere"}, "seconds": 1},
        {},
    ],
)
def test_a_listener_refuses_what_it_does_not_offer_and_goes_on(request_: dict[str, object]) -> None:
    with Listener(host("there", 2), KEY) as listener:
        port = listener.record.rails[0].tcp_ports[0]
        with connect("127.0.0.2", port, time.monotonic() + LIMIT_S) as first:
            assert keys.challenge(first, KEY) == keys.EQUAL
            with pytest.raises(PeerError):
                first.ask(dict(request_))
        with connect("127.0.0.2", port, time.monotonic() + LIMIT_S) as second:
            assert keys.challenge(second, KEY) == keys.EQUAL
            assert second.ask({"do": "describe"})["name"] == "there"


def test_a_listener_looks_back_at_its_caller_only() -> None:
    with Listener(host("there", 2), KEY) as listener, socket.create_server(("127.0.0.4", 0)) as victim:
        port = listener.record.rails[0].tcp_ports[0]
        rail = Rail("rail0", "127.0.0.4", 24, 1500, (victim.getsockname()[1],), 9)
        with connect("127.0.0.2", port, time.monotonic() + LIMIT_S, "127.0.0.1") as caller:
            assert keys.challenge(caller, KEY) == keys.EQUAL
            path = caller.ask({"do": "look back", "host": "here", "rail": rail.to_json(), "seconds": 5})
        assert path["remote_address"] == "127.0.0.1" and "refuses connections" in path["problem"]


def test_a_port_in_use_is_an_error_with_a_way_out() -> None:
    with socket.create_server(("", 0)) as used, pytest.raises(AgspeedError, match="choose another with --port"):
        Listener(host("there", 2), KEY, [used.getsockname()[1]])


# --- parts ------------------------------------------------------------------------------------------------------------


def rail(address: str, bits: int = 24) -> Rail:
    return Rail(address, address, bits, 1500)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (["10.0.0.1", "10.1.0.1"], ["10.0.0.2", "10.1.0.2"], ["10.0.0.2", "10.1.0.2"]),
        (["10.0.0.1", "10.1.0.1"], ["10.1.0.2", "10.0.0.2"], ["10.0.0.2", "10.1.0.2"]),
        (["10.0.0.1", "10.0.0.3"], ["10.0.0.2", "10.0.0.4"], ["10.0.0.2", "10.0.0.4"]),
        (["10.0.0.1", "10.1.0.1"], ["10.2.0.2", "10.3.0.2"], ["10.2.0.2", "10.3.0.2"]),
        (["10.0.0.1", "10.1.0.1"], ["10.0.0.2"], ["10.0.0.2", None]),
        (["10.0.0.1"], ["fd00::1"], [None]),
        ([], ["10.0.0.2"], []),
    ],
)
def test_rails_are_paired_as_jobs_pair_them(mine: list[str], theirs: list[str], expected: list[str | None]) -> None:
    """The cases of tests/comm/rendezvous that are about pairs of rails."""
    found = pair_rails([rail(each) for each in mine], [rail(each) for each in theirs])
    assert [each.address if each else None for each in found] == expected


def test_calls_that_are_late_are_left_behind() -> None:
    is_over = threading.Event()
    assert all_at_once([lambda: 1, lambda: is_over.wait(LIMIT_S) and 2], time.monotonic() + 0.5) == [1, None]
    is_over.set()
    with pytest.raises(ZeroDivisionError):
        all_at_once([lambda: 1 // 0], time.monotonic() + LIMIT_S)
