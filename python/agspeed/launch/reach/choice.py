# SPDX-License-Identifier: Apache-2.0
"""The variables that choose the interfaces of a rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["INTERFACE_VARIABLES", "choice"]

INTERFACE_VARIABLES = ("AGSPEED_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def choice(names: Sequence[str]) -> dict[str, str]:
    """Returns variables that choose these interfaces alone; none if there is no name."""
    return dict.fromkeys(INTERFACE_VARIABLES, f"={','.join(names)}") if names else {}
