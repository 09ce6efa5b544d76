# SPDX-License-Identifier: Apache-2.0
"""The frames between launcher and agent: any values arrive, and any bytes end in a frame or an error."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agspeed.launch.frames import ClosedError, Frame, FrameError, Link

MOST_BYTES = 2000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@contextmanager
def link() -> Iterator[tuple[Link, Link]]:
    """Two ends of one connection."""
    (first, second), (third, fourth) = os.pipe(), os.pipe()
    ends = Link(first, fourth, MOST_BYTES), Link(third, second, MOST_BYTES)
    try:
        yield ends
    finally:
        for each in ends:
            each.close()


@contextmanager
def fed_with(data: bytes) -> Iterator[Link]:
    source, sink = os.pipe()
    os.write(sink, data)
    os.close(sink)
    fed = Link(source, os.open(os.devnull, os.O_WRONLY), MOST_BYTES)
    try:
        yield fed
    finally:
        fed.close()


def all_of(fed: Link) -> list[Frame]:
    found = []
    try:
        while True:
            found += fed.receive()
    except ClosedError:
        return found


@given(st.lists(st.tuples(st.text(min_size=1, max_size=8), JSON, st.binary(max_size=50)), max_size=5))
def test_values_arrive_in_order(messages: list[tuple[str, Any, bytes]]) -> None:
    with link() as (mine, yours):
        for message in messages:
            mine.send(*message)
        mine.close_sink()
        assert all_of(yours) == messages


@given(st.binary(max_size=300))
def test_any_bytes_end_in_frames_or_an_error(data: bytes) -> None:
    with fed_with(data) as fed:
        try:
            all_of(fed)
        except FrameError as error:
            assert len(str(error)) < 300
            with pytest.raises(ClosedError):
                fed.receive()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"a": 1, "b": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"a": ' + b"9" * 500 + b"}",
        b"\xff\xff",
        b" " * (MOST_BYTES + 1),
    ],
)
def test_what_is_no_frame_is_an_error(body: bytes) -> None:
    with fed_with(struct.pack(">II", len(body), 0) + body) as fed, pytest.raises(FrameError):
        all_of(fed)


def test_a_size_beyond_the_limit_is_refused_before_its_bytes_come() -> None:
    with fed_with(b"Welcome to this host\n") as fed, pytest.raises(FrameError, match="'Welcome to this host"):
        all_of(fed)


def test_more_bytes_than_the_limit_are_refused_before_they_come() -> None:
    data = struct.pack(">II", 8, MOST_BYTES + 1) + b'{"a": 1}'
    with fed_with(data) as fed, pytest.raises(FrameError):
        all_of(fed)


def test_a_frame_may_come_in_any_pieces() -> None:
    source, sink = os.pipe()
    fed = Link(source, os.open(os.devnull, os.O_WRONLY), MOST_BYTES)
    found = []
    for byte in struct.pack(">II", 8, 2) + b'{"a": 1}xy':
        assert found == []
        os.write(sink, bytes([byte]))
        found += fed.receive()
    assert found == [("a", 1, b"xy")] and fed.receive() == []
    fed.close()
    os.close(sink)


def test_a_full_pipe_keeps_the_rest_until_it_is_read() -> None:
    with link() as (mine, yours):
        for _ in range(200):
            mine.send("text", "x" * 1000)
        assert mine.is_sending
        found = []
        while len(found) < 200:
            found += yours.receive()
            mine.send_rest()
        assert not mine.is_sending


def test_bytes_to_a_side_that_has_gone_are_dropped() -> None:
    with link() as (mine, yours):
        yours.close()
        mine.send("text", "x")
        assert not mine.is_sending
