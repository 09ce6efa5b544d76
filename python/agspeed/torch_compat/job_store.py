# SPDX-License-Identifier: Apache-2.0
"""The store through which the ranks of a job find each other: the interface on which rank 0's server listens, and the
variables from which torch takes its address and the rank.

torch's store listens on all interfaces and has no key. All needs exist since torch 2.11. Threads: as for torch itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

from agspeed.torch_compat.part import Part

_RENDEZVOUS = "torch.distributed.rendezvous"
_OF_VARIABLES = "env"
PART = Part(
    "job_store",
    __name__,
    needs=(
        f"{_RENDEZVOUS}._create_c10d_store(hostname, port, rank, world_size, timeout, use_libuv)",
        f"{_RENDEZVOUS}._rendezvous_handlers",
        f"{_RENDEZVOUS}._torchelastic_use_agent_store",
    ),
    lost="the store of a job listens on all interfaces instead of on one address, and scripts under srun and mpirun "
    "have to set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT themselves",
)


def listen_on_one_address() -> None:
    """From now on, a store that rank 0 serves at an IPv4 address of this host listens only there.

    All ranks connect to that address. A host's name does not count, because other hosts may resolve it to another
    address. A loopback address does not count if ranks may be on other hosts. Repeated calls change nothing.
    """
    rendezvous: Any = importlib.import_module(_RENDEZVOUS)
    if PART.misfit(may_import=True) is None and not hasattr(rendezvous._create_c10d_store, "is_agspeeds"):
        rendezvous._create_c10d_store = _on_one_address(rendezvous)


def set_variables_before_use(set_variables: Callable[[], None]) -> None:
    """From now on, calls `set_variables` before torch reads the rank from the variables of this process.

    torch reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. torchrun sets them, and other launchers do not.
    Exceptions of the call reach the caller of init_process_group. A script that passes its rank itself does not cause a
    call. Repeated calls change nothing.
    """
    rendezvous: Any = importlib.import_module(_RENDEZVOUS)
    if PART.misfit(may_import=True) is None:
        handlers = rendezvous._rendezvous_handlers
        if not hasattr(handlers[_OF_VARIABLES], "sets_variables"):
            handlers[_OF_VARIABLES] = _after(set_variables, handlers[_OF_VARIABLES])


def serve(host: str, port: int, **options: Any) -> Any:
    """Creates torch's TCPStore with its server in this process. It listens only on `host` if that is an IPv4 address of
    this host, else on all interfaces. See listen_on_one_address().

    Raises: OSError or RuntimeError if it cannot listen on the port.
    """
    from torch import distributed

    torch_distributed: Any = distributed
    make = torch_distributed.TCPStore
    address = _address_here(host)
    if address is None:
        return make(host, port, is_master=True, **options)
    with socket.create_server((address, port), backlog=socket.SOMAXCONN) as made:
        port = made.getsockname()[1]
        store = make(host, port, is_master=True, master_listen_fd=made.fileno(), **options)
        made.detach()  # the store's server owns the descriptor
    return store


def _after(set_variables: Callable[[], None], find_ranks: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(find_ranks)
    def set_and_find(url: str, **options: Any) -> Any:
        if not urlparse(url).query:
            set_variables()
        return find_ranks(url, **options)

    made: Any = set_and_find
    made.sets_variables = True
    return set_and_find


def _on_one_address(rendezvous: Any) -> Callable[..., Any]:
    make = rendezvous._create_c10d_store

    @functools.wraps(make)
    def create(hostname: str, port: int, rank: int, world_size: int, timeout: Any, use_libuv: bool = True) -> Any:
        if rank == 0 and _address_here(hostname) is not None and not rendezvous._torchelastic_use_agent_store():
            options = {"world_size": world_size, "timeout": timeout, "multi_tenant": True, "use_libuv": use_libuv}
            with contextlib.suppress(OSError):  # this process already serves a store there, which torch then finds
                return serve(hostname, port, **options)
        return make(hostname, port, rank, world_size, timeout, use_libuv)

    made: Any = create
    made.is_agspeeds = True
    return create


def _address_here(host: str) -> str | None:
    """Returns `host` if it is an IPv4 address of this host at which all ranks can connect, else None."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        if ipaddress.IPv4Address(address).is_loopback and _may_have_other_hosts():
            return None
        with socket.create_server((address, 0)):
            return address
    except (OSError, ValueError):
        return None


def _may_have_other_hosts() -> bool:
    """Returns whether a launcher has started ranks, and does not say that all of them are on this host.

    Kubeflow, for example, gives rank 0 alone the address `localhost`. The other ranks have the name of its pod.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    return size not in ("1", os.environ.get("LOCAL_WORLD_SIZE"))
