# SPDX-License-Identifier: Apache-2.0
"""The description of a host by its agent, checked, and the address at which the ranks of a job meet. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agspeed.errors import AgspeedError, UserError
from agspeed.launch.frames import FrameError
from agspeed.launch.placement import Share
from agspeed.version import __version__

__all__ = ["Description", "address_of_first"]

LOOPBACK = "127.0.0.1"
_LONGEST_TEXT = 4096


@dataclass(frozen=True)
class Description:
    """A host that is ready.

    Attributes:
        folder: where its ranks run, if it has no folder of the job's name; else empty.
        port: a free port there.
        address: the host's own address, as the launcher has reached it; empty if it does not know.
        launcher_address: the launcher's address, as the host sees it; empty if it does not know.
    """

    version: str
    folder: str
    port: int
    address: str
    launcher_address: str

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Raises: FrameError for other values than an agent's."""
        match value:
            case {
                "version": str(version),
                "folder": str(folder),
                "port": int(port),
                "address": str(address),
                "launcher_address": str(launcher_address),
            } if 0 < port < 1 << 16 and max(len(version), len(folder)) <= _LONGEST_TEXT:
                return cls(version, folder, port, _checked(address), _checked(launcher_address))
        raise FrameError("a description that is not complete")

    def check_version(self, name: str) -> None:
        """Raises: AgspeedError if the host has another agspeed. name: the host, for the begin of a sentence."""
        if self.version != __version__:
            raise AgspeedError(
                f"{name} has agspeed {self.version}, and this host has {__version__}; install the same version, or "
                "name another interpreter with --remote-python."
            )


def address_of_first(shares: Sequence[Share], described: Sequence[Description]) -> str:
    """Returns an address of the first host that the other hosts reach: the one to which ssh has connected.

    If the first host is this one, it is the address from which ssh has connected to another host.
    Raises: UserError if there is none.
    """
    if len(shares) == 1:
        return LOOPBACK
    address = "" if shares[0].host.is_local else described[0].address
    if address and not _is_loopback(address):
        return address
    if shares[0].host.is_local or address:
        seen = [each.launcher_address for each in described[1:] if each.launcher_address]
        elsewhere = [each for each in seen if not _is_loopback(each)]
        if elsewhere or seen:
            return elsewhere[0] if elsewhere else LOOPBACK
    raise UserError(
        f"{shares[0]} does not know by which address other hosts reach it; name the address with --master-addr."
    )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _checked(address: str) -> str:
    """Returns an empty text for a link-local address, which means another host on each link."""
    try:
        found = ipaddress.ip_address(address) if address else None
    except ValueError:
        raise FrameError("an address that is none") from None
    return "" if found is None or found.is_link_local else str(found)
