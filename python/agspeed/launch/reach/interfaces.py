# SPDX-License-Identifier: Apache-2.0
"""The interfaces of this host that carry a job if no setting chooses others, found without the native extension.

They are the same ones as in `comm/topology/interface_selector.cpp`: every interface that is up, with its IPv4 address
or else an IPv6 address. Loopback, link-local addresses and bridges of containers are left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from agspeed import config
from agspeed.errors import UserError
from agspeed.netprobe import Rail

__all__ = ["identity", "rails"]

_CONTAINER_BRIDGES = ("docker", "virbr")
_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_REQUEST = struct.Struct("16s24s")
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
    if not _is_running(name):
        return None
    for address, prefix_bits in (*_ipv4(name), *_ipv6(name)):
        found = ipaddress.ip_address(address)
        if not (found.is_loopback or found.is_link_local):
            return Rail(name, address, prefix_bits, _mtu(name))
    return None


def _is_running(name: str) -> bool:
    flags: int = struct.unpack_from("H", _ask(name, _SIOCGIFFLAGS))[0]
    return flags & _IFF_UP != 0 and flags & _IFF_RUNNING != 0


def _ipv4(name: str) -> Iterator[tuple[str, int]]:
    try:
        address, mask = (_ask(name, question)[4:8] for question in (_SIOCGIFADDR, _SIOCGIFNETMASK))
    except OSError:  # it has no IPv4 address
        return
    yield socket.inet_ntoa(address), int.from_bytes(mask, "big").bit_count()


def _ipv6(name: str) -> Iterator[tuple[str, int]]:
    """Yields the addresses that the kernel lists: 32 digits, index, prefix, scope, flags, name."""
    for line in _IPV6.read_text().splitlines() if _IPV6.exists() else ():
        words = line.split()
        if words[5] == name:
            yield str(ipaddress.IPv6Address(int(words[0], 16))), int(words[2], 16)


def _ask(name: str, question: int) -> bytes:
    """Returns the kernel's answer about an interface. Raises: OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer: bytes = fcntl.ioctl(probe.fileno(), question, _REQUEST.pack(name.encode(), b""))
    return answer[16:]


def _mtu(name: str) -> int:
    return int(Path("/sys/class/net", name, "mtu").read_text())
