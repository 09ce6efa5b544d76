# SPDX-License-Identifier: Apache-2.0
"""The store through which the ranks of a job find each other: the interface on which rank 0's server listens.

torch's store listens on all interfaces and has no key. All needs exist since torch 2.11. Threads: as for torch itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

from agspeed.torch_compat.part import Part

_RENDEZVOUS = "torch.distributed.rendezvous"
PART = Part(
    "job_store",
    __name__,
    needs=(
        f"{_RENDEZVOUS}._create_c10d_store(hostname, port, rank, world_size, timeout, use_libuv)",
        f"{_RENDEZVOUS}._torchelastic_use_agent_store",
    ),
    lost="the store of a job listens on all interfaces, though all its ranks be on this host",
)


def keep_local() -> None:
    """From now on, a store that rank 0 serves at a loopback address listens only there.

    With a loopback address, all ranks are on this host. Repeated calls change nothing.
    """
    rendezvous: Any = importlib.import_module(_RENDEZVOUS)
    if PART.misfit(may_import=True) is None and not hasattr(rendezvous._create_c10d_store, "keeps_local"):
        rendezvous._create_c10d_store = _keeping_local(rendezvous)


def serve(host: str, port: int, **options: Any) -> Any:
    """Creates torch's TCPStore with its server in this process. It listens only on loopback if `host` is loopback.

    Raises: OSError or RuntimeError if it cannot listen there.
    """
    from torch import distributed

    make: Any = distributed.TCPStore  # type: ignore[attr-defined]
    if not _is_loopback(host):
        return make(host, port, is_master=True, **options)
    address = ("127.0.0.1" if host == "localhost" else host, port)
    with socket.create_server(address, backlog=socket.SOMAXCONN) as made:
        port = made.getsockname()[1]
        store = make(host, port, is_master=True, master_listen_fd=made.fileno(), **options)
        made.detach()  # the store's server owns the descriptor
    return store


def _keeping_local(rendezvous: Any) -> Callable[..., Any]:
    make = rendezvous._create_c10d_store

    @functools.wraps(make)
    def create(hostname: str, port: int, rank: int, world_size: int, timeout: Any, use_libuv: bool = True) -> Any:
        if rank == 0 and _is_loopback(hostname) and not rendezvous._torchelastic_use_agent_store():
            options = {"world_size": world_size, "timeout": timeout, "multi_tenant": True, "use_libuv": use_libuv}
            with contextlib.suppress(OSError):  # this process already serves a store there, which torch then finds
                return serve(hostname, port, **options)
        return make(hostname, port, rank, world_size, timeout, use_libuv)

    create.keeps_local = True  # type: ignore[attr-defined]
    return create


def _is_loopback(host: str) -> bool:
    """Whether all ranks see `host` as loopback. A host's name does not count: it may have another address elsewhere."""
    try:
        return host == "localhost" or ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False
