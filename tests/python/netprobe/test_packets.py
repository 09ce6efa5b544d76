# SPDX-License-Identifier: Apache-2.0
"""Finds the largest packet that a path carries to the byte, whatever else the path drops."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agspeed.netprobe import Rail, packets
from tests.python.netprobe.conftest import LOOPBACK_MTU

TOKEN = bytes(range(packets.TOKEN_BYTES))
HEADERS = 28
LIMIT_S = 60.0


@contextmanager
def echo(largest: int, answers_after: int = 0) -> Iterator[Rail]:
    """A rail that drops packets of more than `largest` bytes, and the first `answers_after` packets of any size."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.settimeout(0.05)
        is_over = threading.Event()

        def serve() -> None:
            num_seen = 0
            while not is_over.is_set():
                try:
                    datagram, sender = made.recvfrom(1 << 16)
                except TimeoutError:
                    continue
                num_seen += 1
                if len(datagram) + HEADERS <= largest and num_seen > answers_after:
                    made.sendto(datagram[:20], sender)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Rail("lo", "127.0.0.1", 8, LOOPBACK_MTU, (), made.getsockname()[1])
        finally:
            is_over.set()
            thread.join()


def find(theirs: Rail, mtu: int, seconds: float = LIMIT_S) -> int | None:
    mine = Rail("lo", "127.0.0.1", 8, mtu)
    return packets.largest_packet(mine, theirs, TOKEN, 0.001, time.monotonic() + seconds)


@pytest.mark.parametrize(("mtu", "largest"), [(1500, 1400), (9000, 1500), (9000, 8999), (1500, 1200), (1500, 1499)])
def test_a_smaller_size_on_the_way_is_found_exactly(mtu: int, largest: int) -> None:
    with echo(largest) as theirs:
        assert find(theirs, mtu) == largest


def test_what_the_interfaces_allow_is_enough() -> None:
    with echo(LOOPBACK_MTU) as theirs:
        assert find(theirs, 1500) == 1500
        assert find(theirs, LOOPBACK_MTU) == LOOPBACK_MTU


def test_some_lost_packets_are_no_small_size() -> None:
    with echo(9000, answers_after=3) as theirs:
        assert find(theirs, 9000) == 9000


def test_where_nothing_is_answered_nothing_is_claimed() -> None:
    with echo(0) as theirs:
        assert find(theirs, 1500) is None
    with echo(1400) as theirs:
        assert find(theirs, 1500, seconds=0.0) is None


def test_an_echo_knows_its_token_and_never_sends_more_than_it_got() -> None:
    rail = Rail("lo", "127.0.0.1", 8, LOOPBACK_MTU)
    with packets.open_echo(rail) as served, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        served.setblocking(True)
        asking.settimeout(LIMIT_S)
        asking.connect(served.getsockname())
        for datagram in (b"", b"x" * 1000, TOKEN + b"\0\0\5\0" + bytes(1000)):
            asking.send(datagram)
            packets.answer(served, TOKEN)
        assert asking.recv(1 << 16) == TOKEN + b"\0\0\5\0"
        asking.setblocking(False)
        with pytest.raises(BlockingIOError):
            asking.recv(1 << 16)
