# SPDX-License-Identifier: Apache-2.0
"""Runs a command's TCP connections over all rails at once by multipath TCP, the strongest baseline for comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agspeed.netbed import system
from agspeed.netbed.bed import Netbed

__all__ = ["mptcp"]

_PRELOAD_SOURCE = Path(__file__).with_name("mptcp_preload.c")
_FIRST_TABLE = 100
_MOST_SUBFLOWS = 8  # the kernel's limit


@contextmanager
def mptcp(bed: Netbed) -> Iterator[dict[str, str]]:
    """Prepares every host, and yields the environment for commands whose connections must use all rails.

    A connection to an address of the first rail (GLOO_SOCKET_IFNAME=rail0) then gets exactly one more subflow for each
    other rail. The connecting side opens the subflows, to the address and port that listens. So each rail has a route
    to that address, because a host answers for any of its addresses on any of its rails.
    """
    for host in bed.hosts:
        others = host.rails[1:]
        lines = [f"mptcp limits set subflows {min(len(others), _MOST_SUBFLOWS)} add_addr_accepted 0"]
        for table, rail in enumerate(others, _FIRST_TABLE):
            lines.append(f"rule add from {rail.ipv4} table {table}")
            lines.append(f"route add {host.rails[0].subnet} dev {rail.name} table {table}")
            lines.append(f"mptcp endpoint add {rail.ipv4} dev {rail.name} subflow")
        system.ip(host.namespace, lines)
    try:
        yield {"LD_PRELOAD": str(_compiled_preload(bed.scratch))}
    finally:
        for host in bed.hosts:
            rules = [f"rule del from {rail.ipv4}" for rail in host.rails[1:]]
            tables = [f"route flush table {_FIRST_TABLE + at}" for at in range(len(rules))]
            system.ip(host.namespace, ["mptcp endpoint flush", "mptcp limits set subflows 0", *rules, *tables])


def _compiled_preload(scratch: Path) -> Path:
    product = scratch / "mptcp_preload.so"
    if not product.exists():
        compiler = system.tool("cc", "build-essential")
        system.run(compiler, "-O2", "-shared", "-fPIC", str(_PRELOAD_SOURCE), "-o", str(product), "-ldl")
    return product
