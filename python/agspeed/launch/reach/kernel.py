# SPDX-License-Identifier: Apache-2.0
"""Asks the kernel about a network interface of this host. The functions change nothing; any thread may call them."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["ipv4", "is_running"]

_FLAGS, _ADDRESS, _NETMASK = 0x8913, 0x8915, 0x891B  # SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_REQUEST = struct.Struct("16s24s")


def is_running(name: str) -> bool:
    """Returns whether the interface is switched on and has a carrier. Raises: OSError if it does not exist."""
    flags: int = struct.unpack_from("H", _ask(name, _FLAGS))[0]
    return flags & _IFF_UP != 0 and flags & _IFF_RUNNING != 0


def ipv4(name: str) -> tuple[str, int] | None:
    """Returns the interface's IPv4 address and the bits of its prefix; None if it has no such address."""
    try:
        address, mask = (_ask(name, question)[4:8] for question in (_ADDRESS, _NETMASK))
    except OSError:
        return None
    return socket.inet_ntoa(address), int.from_bytes(mask, "big").bit_count()


def _ask(name: str, question: int) -> bytes:
    """Returns the kernel's answer. Raises: OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer: bytes = fcntl.ioctl(probe.fileno(), question, _REQUEST.pack(name.encode(), b""))
    return answer[16:]
