# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests with tensors on the device "delayed". They return results on the host."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch import distributed as dist
from torch.utils._pytree import tree_map

from tests.python.distributed import delayed_device, programs


def on_device(program: str, **arguments: Any) -> Any:
    """Runs a program of programs.py whose tensors are made on the device."""
    with torch.device(delayed_device.NAME):
        found = getattr(programs, program)(**arguments)
    return tree_map(lambda each: each.cpu() if isinstance(each, torch.Tensor) else each, found)


def _arriving(values: torch.Tensor) -> torch.Tensor:
    """Returns `values` on the device, available once the current stream gets that far."""
    return torch.empty(values.shape, device=delayed_device.NAME).copy_(values.pin_memory(), non_blocking=True)


def started_before_their_input() -> dict[str, Any]:
    """Runs operations whose input the device has not produced yet at the call."""
    rank, size = dist.get_rank(), dist.get_world_size()
    delayed_device.hold()
    try:
        late = _arriving(torch.full((50_000,), rank + 1.0))
        work = dist.all_reduce(late, async_op=True)
        future = dist.all_reduce(_arriving(torch.tensor([float(rank)])), async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0].cpu() * 2)
        gathered = torch.empty(size * 1000, device=delayed_device.NAME)
        gather = dist.all_gather_into_tensor(gathered, _arriving(torch.full((1000,), float(rank))), async_op=True)
        meanwhile = torch.tensor([float(rank)])
        dist.all_reduce(meanwhile)
        was_completed = work.is_completed()
    finally:
        delayed_device.release()
    work.wait()
    gather.wait()
    return {
        "meanwhile": float(meanwhile),
        "was_completed": was_completed,
        "late": late.cpu(),
        "doubled": float(doubled.wait()),
        "gathered": gathered.cpu(),
    }


def messages_of_one_tag() -> list[torch.Tensor]:
    """Sends two messages to the next rank: the first from the device before its data exist, the second from the
    host."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = [torch.empty(3000, device=delayed_device.NAME), torch.empty(3000)]
    works = [dist.irecv(tensor, src=(rank - 1) % size, tag=5) for tensor in received]
    delayed_device.hold()
    try:
        works.append(dist.isend(_arriving(torch.full((3000,), 10.0 + rank)), dst=(rank + 1) % size, tag=5))
        works.append(dist.isend(torch.full((3000,), 20.0 + rank), dst=(rank + 1) % size, tag=5))
    finally:
        delayed_device.release()
    for work in works:
        work.wait()
    return [tensor.cpu() for tensor in received]


def repeated(steps: int, count: int) -> list[float]:
    """Returns sums of temporary tensors, one after another. The host waits for the last one only."""
    rank = dist.get_rank()
    totals = torch.zeros(count, device=delayed_device.NAME)
    pending = []
    for step in range(steps):
        tensor = _arriving(torch.full((count,), float(rank + step)))
        pending.append((dist.all_reduce(tensor, async_op=True), tensor))
        if len(pending) == 3:
            work, done = pending.pop(0)
            work.wait()
            totals += done
    for work, done in pending:
        work.wait()
        totals += done
    return sorted(set(totals.cpu().tolist()))


def never_made(timeout_s: float) -> str:
    """Returns the error of a call whose input the device never produces."""
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(seconds=timeout_s)
    delayed_device.hold()
    try:
        tensor = _arriving(torch.ones(100))
        dist.distributed_c10d._get_default_group().allreduce([tensor], options).wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        delayed_device.release()
    return "nothing was raised"
