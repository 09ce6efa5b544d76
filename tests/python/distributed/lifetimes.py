# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of handles and groups that end early, of several threads, and of waits in
stores."""

from __future__ import annotations

import datetime
import socket
import threading
import time

import torch
from torch import distributed as dist

_TIMEOUT_S = 20


def future_after_the_group() -> torch.Tensor:
    """Returns the value of a future that is requested after the group has ended."""
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.wait()
    _end_and_start_again()
    return work.get_future().wait()[0]


def waiting_while_the_group_ends() -> str:
    """Returns the error of a thread that waits for a message that never comes, while another thread ends the group."""
    heard: list[str] = []
    work = dist.irecv(torch.zeros(3), src=(dist.get_rank() + 1) % dist.get_world_size(), tag=77)

    def wait() -> None:
        try:
            work.wait()
        except Exception as error:
            heard.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)  # by then the thread waits
    _end_and_start_again()
    thread.join(_TIMEOUT_S)
    return heard[0] if heard else "nothing"


def _end_and_start_again() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    port = _free_port()
    dist.barrier()  # no rank may leave while another has yet to start the broadcast
    dist.destroy_process_group()
    store = _start(rank, size, port)
    dist.barrier()  # the other ranks need rank 0's store to start
    del store


def dropped_handle() -> torch.Tensor:
    """All-reduces every second column without keeping the handle. Returns the whole tensor."""
    whole = torch.ones(4, 6)
    dist.all_reduce(whole[:, ::2], async_op=True)
    give_up = time.monotonic() + _TIMEOUT_S
    while whole[0, 0] == 1 and time.monotonic() < give_up:
        time.sleep(0.01)
    dist.barrier()
    return whole


def polled_beside_futures(times: int) -> float:
    """Returns the sum of all-gathers with a future, polled by a thread that never releases Python's GIL."""
    total = 0.0
    for _ in range(times):
        own, whole = torch.ones(4), torch.zeros(4 * dist.get_world_size())
        work = dist.all_gather_into_tensor(whole, own, async_op=True)
        work.get_future()
        while not work.is_completed():
            pass
        total += float(whole.sum())
    return total


def messages_beside_coalesced_calls(rounds: int) -> list[bool]:
    """Returns, for receives without a message, whether each is a work of its own while another thread coalesces
    calls."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    is_over = threading.Event()
    found = []

    def coalesce() -> None:
        inputs = [torch.ones(2) for _ in range(8)]
        outputs = [torch.zeros(2 * size) for _ in range(8)]
        for _ in range(rounds):
            group.allgather_into_tensor_coalesced(outputs, inputs).wait()
        is_over.set()

    thread = threading.Thread(target=coalesce)
    thread.start()
    while not is_over.is_set():
        work = dist.irecv(torch.zeros(1), src=(rank + 1) % size, tag=len(found))
        found.append(work is not None and not work.is_completed())
        time.sleep(1e-4)
    thread.join()
    dist.barrier()
    return found


def reduced_while_a_rank_waits_in_the_store() -> float:
    """Returns the sum of a first all-reduce. Meanwhile rank 1 waits in the store for a key that rank 0 sets after
    it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    port = _free_port()
    dist.destroy_process_group()
    store = _start(rank, size, port)
    value = torch.ones(1000)
    work = dist.all_reduce(value, async_op=True)
    if rank == 1:
        store.get("reduced")
    work.wait()
    if rank == 0:
        store.set("reduced", "yes")
    dist.barrier()
    return float(value[0])


def _start(rank: int, size: int, port: int) -> dist.Store:
    timeout = datetime.timedelta(seconds=_TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout)
    dist.init_process_group("agspeed", store=store, rank=rank, world_size=size, timeout=timeout)
    return store


def _free_port() -> int:
    """Returns a port that is free on rank 0, on all ranks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = torch.tensor(server.getsockname()[1])
    dist.broadcast(port, src=0)
    return int(port)
