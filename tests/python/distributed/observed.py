# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of what torch's own tools show of a backend: profilers and DDP's logging data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity

#: Name, True if asynchronous, shapes of inputs.
Event = tuple[str, bool, list[list[int]]]


def _profiled(profiler: str, body: Callable[[], Any]) -> list[Event]:
    """Returns the backend's events while `body` ran, sorted."""
    prefix = dist.get_backend() + ":"
    profile: Any
    if profiler == "torch.profiler":
        with torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profile:
            body()
        events = profile.events()
    else:
        with torch.autograd.profiler.profile(record_shapes=True) as profile:
            body()
        events = profile.function_events
    found = [each for each in events if each.name.startswith(prefix)]
    return sorted((each.name.removeprefix(prefix), each.is_async, each.input_shapes) for each in found)


def events(profiler: str, operations: list[str]) -> dict[str, list[Event]]:
    """Returns the events of each of `operations`."""
    return {name: _profiled(profiler, globals()[f"_{name}"]) for name in operations}


def events_after_the_call(profiler: str) -> list[Event]:
    """Returns the events of an operation whose future is waited for and whose work is not."""

    def body() -> None:
        dist.all_reduce(torch.ones(2, 3), async_op=True).get_future().wait()

    return _profiled(profiler, body)


def _all_reduce() -> None:
    dist.all_reduce(torch.ones(2, 3), async_op=True).wait()


def _coalesced() -> None:
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])


def _broadcast() -> None:
    dist.broadcast(torch.ones(4), src=0)


def _reduce() -> None:
    dist.reduce(torch.ones(4), dst=0)


def _gathers() -> None:
    dist.all_gather([torch.empty(2) for _ in range(dist.get_world_size())], torch.ones(2))
    is_root = dist.get_rank() == 0
    dist.gather(torch.ones(3), [torch.empty(3) for _ in range(dist.get_world_size())] if is_root else None, dst=0)


def _scatter() -> None:
    parts = [torch.ones(5) for _ in range(dist.get_world_size())]
    dist.scatter(torch.empty(5), parts if dist.get_rank() == 0 else None, src=0)


def _messages() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(7), dst=1)
        dist.send(torch.ones(8), dst=1)
    elif rank == 1:
        dist.recv(torch.empty(7), src=0)
        dist.recv(torch.empty(8))


def _batch() -> None:
    rank = dist.get_rank()
    if rank < 2:
        operations = [dist.P2POp(dist.isend, torch.ones(2), 1 - rank), dist.P2POp(dist.irecv, torch.ones(2), 1 - rank)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def _barrier() -> None:
    dist.barrier()


def _sparse() -> None:
    dist.all_reduce(torch.eye(3).to_sparse())


def logged_backend() -> str:
    """Returns the backend's name in DDP's logging data."""
    wrapped = DistributedDataParallel(torch.nn.Linear(2, 2))
    return str(wrapped._get_ddp_logging_data()["backend_name"])
