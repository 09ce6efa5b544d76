# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of groups that are split, bound to a device, or named again. They sum rank
numbers."""

from __future__ import annotations

import datetime
import threading
import time
from typing import Any

import psutil
import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

import agspeed.distributed as agspeed_distributed
from agspeed import native


def detailed() -> None:
    """Makes torch wrap its backends from now on."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)


def sum_over(group: Any) -> float | None:
    """Returns the sum over the group, or None on ranks outside it."""
    if group is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor, group=group)
    return float(tensor)


def _bind_device() -> None:
    """Does what init_process_group does with a device_id, which it accepts only if the device exists."""
    dist.group.WORLD.bound_device_id = torch.device("cuda", 0)


def _timeout_s(group: Any) -> float:
    return float(group._get_backend(torch.device("cpu")).options._timeout.total_seconds())


# --- splitting --------------------------------------------------------------------------------------------------------


def new_groups_beside_a_device() -> list[float | None]:
    """Returns sums over the first two ranks and over all ranks."""
    _bind_device()
    return [sum_over(dist.new_group([0, 1])), sum_over(dist.new_group())]


def split_beside_a_device() -> list[float | None]:
    """Returns sums over the first two ranks, as the only part of a split, among parts that cover all ranks, and alone
    again."""
    _bind_device()
    others = [[rank] for rank in range(2, dist.get_world_size())]
    return [sum_over(dist.split_group(None, parts)) for parts in ([[0, 1]], [*others, [0, 1]], [[0, 1]])]


def split_with_a_timeout() -> list[float]:
    """Returns timeouts in seconds: of a group before and after a split, and of the part."""
    whole = dist.group.WORLD
    before = _timeout_s(whole)
    part = whole.split_group(list(range(dist.get_world_size())), timeout=datetime.timedelta(seconds=5))
    return [before, _timeout_s(whole), _timeout_s(part)]


# --- names ------------------------------------------------------------------------------------------------------------


def named_again(times: int) -> list[float | None]:
    """Returns sums over groups of the first two ranks. Each group ends before the next one of the same name is made."""
    found = []
    for _ in range(times):
        if dist.get_rank() == 0:
            time.sleep(0.1)  # so that the other rank looks up the number first
        group = dist.new_group([0, 1], use_local_synchronization=True, timeout=datetime.timedelta(seconds=5))
        found.append(sum_over(group))
        if found[-1] is not None:
            dist.destroy_process_group(group)
    return found


def meshes_after_each_other(times: int) -> list[tuple[float | None, ...]]:
    """Returns sums along both dimensions of a mesh of two rows, in one default group after another on the same
    store."""
    store, rank, size = distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    found = []
    for _ in range(times):
        dist.destroy_process_group()
        timeout = datetime.timedelta(seconds=5)
        dist.init_process_group("agspeed", store=store, rank=rank, world_size=size, timeout=timeout)
        mesh = init_device_mesh("cpu", (2, size // 2))
        found.append(tuple(sum_over(mesh.get_group(dimension)) for dimension in (0, 1)))
    return found


def late(seconds: float) -> None:
    """Rank 1 takes this long."""
    if dist.get_rank() == 1:
        time.sleep(seconds)


def made_by_others_only() -> str:
    """Returns the error on ranks that make a group without its first rank."""
    if dist.get_rank() == 0:
        return ""
    try:
        dist.new_group(use_local_synchronization=True, timeout=datetime.timedelta(seconds=0.5))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def store_used_while_a_group_is_made() -> bool:
    """Returns True if rank 1 can use its TCPStore client while it waits there for rank 0 to make a group."""
    rank, shared = dist.get_rank(), distributed_c10d._get_default_store()
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared.set("port", str(store.port))
        store.wait(["rank 1 waits"], datetime.timedelta(seconds=20))
        group = _pair_in(store)
    elif rank == 1:
        store = dist.TCPStore("127.0.0.1", int(shared.get("port")))
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(_pair_in(store)))
        thread.start()
        time.sleep(0.3)  # the thread waits by now
        store.set("rank 1 waits", "yes")
        thread.join()
        [group] = made
    else:
        return True
    group.allreduce([torch.ones(1)]).wait()
    return True


def connections_to_a_store(times: int) -> list[set[int]]:
    """Returns the local ports of this rank's connections to a TCPStore, for one default group after another."""
    rank, size, shared = dist.get_rank(), dist.get_world_size(), distributed_c10d._get_default_store()
    port = 0 if rank == 0 else int(shared.get("server"))
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        shared.set("server", str(store.port))
    found = []
    for _ in range(times):
        dist.destroy_process_group()
        dist.init_process_group("agspeed", store=store, rank=rank, world_size=size)
        dist.all_reduce(torch.ones(4))
        dist.barrier()
        connections = psutil.Process().net_connections("inet")
        found.append({each.laddr.port for each in connections if each.raddr and each.raddr.port == store.port})
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < size:  # rank 0 is the server, which the others use until then
        time.sleep(0.01)
    return found


def _pair_in(store: Any) -> Any:
    """Returns a group of the first two ranks that torch does not know."""
    options = distributed_c10d._DistributedBackendOptions()
    options.store, options.group_id = store, "pair"
    options.group_rank, options.group_size, options.global_ranks_in_group = dist.get_rank(), 2, [0, 1]
    options.timeout = datetime.timedelta(seconds=10)
    module = native.load()
    assert module is not None
    return module.create_process_group(options)


# --- wrappers ---------------------------------------------------------------------------------------------------------


def tools_in_detail() -> tuple[str, int, str]:
    """Returns the backend's name in torch, the number of counted all-reduces, and the last operation on record."""
    dist.all_reduce(torch.ones(3))
    agspeed_distributed.monitored_barrier(timeout=20.0)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    operations = {row["operation"]: row for row in agspeed_distributed.counters()["operations"]}
    last = agspeed_distributed.flight_record()["groups"][0]["operations"][-1]
    return type(backend).__name__, operations["all_reduce"]["started"], last["operation"]
