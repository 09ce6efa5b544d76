# SPDX-License-Identifier: Apache-2.0
"""`reach` tells paths that carry connections from others, without more checks."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from agspeed.netprobe import HostRecord, Listener, peers
from agspeed.netprobe.peers import reach, routes_to
from agspeed.netprobe.probe import Prober
from tests.python.netprobe.conftest import KEY, host

_LIMIT_S = 60.0


def problems(there: HostRecord, key: bytes = KEY, limit_s: float = _LIMIT_S) -> list[str]:
    """What `here` finds on the way to the rails of a host."""
    deadline = time.monotonic() + limit_s
    routes = routes_to(host("here", 1, 1), there)
    return [path.problem for path in reach(routes, Prober("here", key, deadline), deadline)]


def test_a_listener_with_the_same_key_is_reached_on_every_rail() -> None:
    with Listener(host("there", 2, 2), KEY) as listener:
        assert problems(listener.record) == ["", ""]


def test_another_host_with_the_same_address_is_not_reached() -> None:
    with Listener(host("there", 2), KEY[::-1]) as listener:
        assert problems(listener.record) == ["has an address that another host has, too"]


def test_a_host_that_accepts_and_does_not_answer_is_reached_and_one_that_refuses_is_not() -> None:
    with socket.create_server(("127.0.0.2", 0)) as busy:
        record = host("there", 2)
        record = replace(record, rails=(replace(record.rails[0], tcp_ports=(busy.getsockname()[1],)),))
        assert problems(record, limit_s=1.0) == [""]
    assert problems(record)[0].startswith("refuses connections")


def test_routes_are_checked_in_parts_and_left_out_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MOST_AT_ONCE", 1)
    with Listener(host("there", 2, 2), KEY) as listener:
        assert problems(listener.record) == ["", ""]
        assert len(problems(listener.record, limit_s=0.0)) == 1
