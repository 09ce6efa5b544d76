# SPDX-License-Identifier: Apache-2.0
"""The interfaces of this host that carry a job if no setting chooses others, found without the native extension.

They are the same ones as in `comm/topology/interface_selector.cpp`: every interface that is up, with its IPv4 address
or else an IPv6 address. Loopback, link-local addresses and bridges of containers are left out.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from agspeed import config
from agspeed.errors import UserError
from agspeed.launch.reach import kernel
from agspeed.netprobe import Rail

__all__ = ["identity", "rails"]

_CONTAINER_BRIDGES = ("docker", "virbr")
_IPV6 = Path("/proc/net/if_inet6")


def rails() -> tuple[Rail, ...]:
    """Returns the interfaces; none if a setting of this host chooses them."""
    try:
        if config.resolve().socket_interfaces:
            return ()
    except UserError:  # ranks that need the settings raise it
        return ()
    found = []
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):  # it has just gone
            found.append(None if name.startswith(_CONTAINER_BRIDGES) else _rail(name))
    return tuple(rail for rail in found if rail is not None)


def identity() -> str:
    """Returns a text that is equal for agents that share a machine and its network; empty if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


def _rail(name: str) -> Rail | None:
    if not kernel.is_running(name):
        return None
    of_ipv4 = kernel.ipv4(name)
    for address, prefix_bits in (*([of_ipv4] if of_ipv4 else ()), *_ipv6(name)):
        found = ipaddress.ip_address(address)
        if not (found.is_loopback or found.is_link_local):
            return Rail(name, address, prefix_bits, _mtu(name))
    return None


def _ipv6(name: str) -> Iterator[tuple[str, int]]:
    """Yields the addresses that the kernel lists: 32 digits, index, prefix, scope, flags, name."""
    for line in _IPV6.read_text().splitlines() if _IPV6.exists() else ():
        words = line.split()
        if words[5] == name:
            yield str(ipaddress.IPv6Address(int(words[0], 16))), int(words[2], 16)


def _mtu(name: str) -> int:
    return int(Path("/sys/class/net", name, "mtu").read_text())
