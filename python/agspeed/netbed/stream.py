# SPDX-License-Identifier: Apache-2.0
"""Raw TCP streams between hosts, as an upper limit and as a control for tests of a transport.

The rate of the streams is the most that a transport can reach. As a control, they show which bytes plain TCP delivers
while packets are corrupted. Each byte depends on its position and is compared on arrival, unless a test only measures
the cost of moving bytes.

Each stream is a plain send and receive loop, in a thread of its own on both hosts, bound to its rail's addresses.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from agspeed.netbed.bed import Host, Netbed

__all__ = ["Flow", "stream"]

_PORT = 47200  # plus the source host's index
_PATTERN = bytes(range(251)) * 1024
_TWICE = _PATTERN * 2
_CONNECT_LIMIT_S = 5.0
_BACKLOG_BYTES = 128 * 1024  # limit for unsent bytes in the sender's kernel, because they leave after the time is over
_WARM_UP = 0.1  # share of the time: a shaper lets its burst through at once, and TCP has to find its window


@dataclass(frozen=True)
class Flow:
    """The result of one stream. The rate counts payload, without the start. The processor time is for both ends."""

    source: int
    destination: int
    rail: int
    bits_per_second: float
    num_bytes: int
    wrong_bytes: int
    cpu_seconds: float


def stream(
    bed: Netbed, seconds: float = 1.0, pairs: Sequence[tuple[int, int]] | None = None, *, compares: bool = True
) -> list[Flow]:
    """Streams for `seconds` over all rails at once, and returns one flow per (source, destination) pair and rail.

    Without `pairs`, every host sends to the next: the traffic of a ring, as fast as the links carry it. With
    `compares=False`, the bytes are not compared, and none count as wrong.
    """
    hosts = bed.hosts
    chosen = list(pairs) if pairs is not None else [(at, (at + 1) % len(hosts)) for at in range(len(hosts))]
    involved = sorted({host for pair in chosen for host in pair})
    limit_s = 3 * seconds + 2 * _CONNECT_LIMIT_S
    found = bed.call(_on_host, hosts, chosen, seconds, compares, hosts=involved, timeout_s=limit_s)
    spent = {way: cpu for _, sending in found for way, cpu in sending.items()}
    flows = [
        replace(flow, cpu_seconds=flow.cpu_seconds + spent[flow.source, flow.destination, flow.rail])
        for received, _ in found
        for flow in received
    ]
    return sorted(flows, key=lambda flow: (flow.source, flow.rail))


def _on_host(
    me: Host, hosts: Sequence[Host], pairs: Sequence[tuple[int, int]], seconds: float, compares: bool
) -> tuple[list[Flow], dict[tuple[int, int, int], float]]:
    """Returns this host's received flows, and the processor seconds of its sends by (source, destination, rail)."""
    listeners = [
        (source, rail, socket.create_server((me.rails[rail].ipv4, _PORT + source)))
        for source, destination in pairs
        if destination == me.index
        for rail in range(len(me.rails))
    ]
    ways = [
        (me.index, destination, rail)
        for source, destination in pairs
        if source == me.index
        for rail in range(len(me.rails))
    ]
    with ThreadPoolExecutor(len(ways) + len(listeners)) as pool:
        sending = {
            way: pool.submit(_send, me.rails[way[2]].ipv4, hosts[way[1]].rails[way[2]].ipv4, me.index, seconds)
            for way in ways
        }
        receiving = [
            pool.submit(_receive, listener, source, me.index, rail, seconds, compares)
            for source, rail, listener in listeners
        ]
        return [flow.result() for flow in receiving], {way: cpu.result() for way, cpu in sending.items()}


def _send(local: str, peer: str, source: int, seconds: float) -> float:
    """Sends one stream. Returns: its processor seconds."""
    with _connect(local, (peer, _PORT + source)) as connection:
        connection.settimeout(2 * seconds + _CONNECT_LIMIT_S)
        before = time.thread_time()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _BACKLOG_BYTES)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(_PATTERN)
        return time.thread_time() - before


def _connect(local: str, peer: tuple[str, int]) -> socket.socket:
    """Connects, and retries until the peer's process listens."""
    deadline = time.monotonic() + _CONNECT_LIMIT_S
    while True:
        try:
            return socket.create_connection(peer, timeout=_CONNECT_LIMIT_S, source_address=(local, 0))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _receive(listener: socket.socket, source: int, destination: int, rail: int, seconds: float, compares: bool) -> Flow:
    listener.settimeout(_CONNECT_LIMIT_S)
    with listener:
        connection, _ = listener.accept()
    buffer = bytearray(len(_PATTERN))
    started, cpu_before = time.monotonic(), time.thread_time()
    num_bytes = wrong = early_bytes = 0
    early = ended = started
    with connection:
        connection.settimeout(2 * seconds + _CONNECT_LIMIT_S)
        while received := connection.recv_into(buffer):
            ended = time.monotonic()
            if compares:
                wrong += _count_wrong(buffer, received, num_bytes % len(_PATTERN))
            num_bytes += received
            if ended - started < _WARM_UP * seconds:
                early, early_bytes = ended, num_bytes
    rate = 8 * (num_bytes - early_bytes) / (ended - early) if ended > early else 0.0
    return Flow(source, destination, rail, rate, num_bytes, wrong, time.thread_time() - cpu_before)


def _count_wrong(buffer: bytearray, num_bytes: int, at: int) -> int:
    expected = _TWICE[at : at + num_bytes]
    if buffer[:num_bytes] == expected:
        return 0
    return sum(got != sent for got, sent in zip(buffer, expected, strict=False))
