# SPDX-License-Identifier: Apache-2.0
"""Hosts on loopback. Each host has addresses in 127.0.0.0/8 as rails, and all hosts may run in one process."""

from __future__ import annotations

from agspeed.netprobe import HostRecord, Rail

KEY = b"0123456789abcdef"
LOOPBACK_MTU = 65535


def host(name: str, *last_bytes: int, mtu: int = LOOPBACK_MTU) -> HostRecord:
    """`host("a", 1, 2)` has the rails rail0 at 127.0.0.1 and rail1 at 127.0.1.2, each in a network of its own."""
    rails = (Rail(f"rail{k}", f"127.0.{k}.{last}", 24, mtu) for k, last in enumerate(last_bytes))
    return HostRecord(name, tuple(rails))
