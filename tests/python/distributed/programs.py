# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests, on every rank of a default group. They return values to compare."""

from __future__ import annotations

import copy
import datetime
import threading
import time
from typing import Any

import psutil
import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from agspeed import native

REDUCIBLE = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int32,
             torch.int64]  # fmt: skip


def data(count: int, dtype: torch.dtype, rank: int, salt: int = 0) -> torch.Tensor:
    """Returns small integers that depend on position and rank, and are exact in every type that is summed."""
    values = (torch.arange(count, dtype=torch.int64) * 7 + rank * 3 + salt) % 5
    return values.to(dtype)


def all_reduces(count: int, dtypes: list[torch.dtype], ops: list[str]) -> list[torch.Tensor]:
    results = []
    for dtype in dtypes:
        for op in ops:
            tensor = data(count, dtype, dist.get_rank())
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
            results.append(tensor)
    return results


def movements(count: int, dtype: torch.dtype) -> dict[str, Any]:
    """Runs one of each operation that only moves elements."""
    rank, size = dist.get_rank(), dist.get_world_size()
    own = data(count, dtype, rank)
    found: dict[str, Any] = {}

    tensor = own.clone()
    dist.broadcast(tensor, src=size - 1)
    found["broadcast"] = tensor

    gathered = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(gathered, own)
    found["all_gather"] = gathered

    whole = own.new_empty(size * count)
    dist.all_gather_into_tensor(whole, own)
    found["all_gather_into_tensor"] = whole

    outputs = [torch.empty_like(own) for _ in range(size)] if rank == 1 else None
    dist.gather(own, outputs, dst=1)
    found["gather"] = outputs

    inputs = [data(count, dtype, rank, salt) for salt in range(size)] if rank == 0 else None
    tensor = torch.empty_like(own)
    dist.scatter(tensor, inputs, src=0)
    found["scatter"] = tensor

    inputs = [data(count, dtype, rank, salt) for salt in range(size)]
    if dist.get_backend() != "gloo":  # Gloo has none
        outputs = [torch.empty_like(own) for _ in range(size)]
        dist.all_to_all(outputs, inputs)
        found["all_to_all"] = outputs

    output = own.new_empty(size * count)
    dist.all_to_all_single(output, torch.cat(inputs))
    found["all_to_all_single"] = output

    dist.barrier()
    return found


def reductions_of_parts(count: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = [data(count, dtype, rank, salt) for salt in range(size)]
    found = {}
    output = torch.empty_like(inputs[0])
    dist.reduce_scatter(output, [each.clone() for each in inputs])
    found["reduce_scatter"] = output
    output = torch.empty_like(inputs[0])
    dist.reduce_scatter_tensor(output, torch.cat(inputs))
    found["reduce_scatter_tensor"] = output
    tensor = inputs[0].clone()
    dist.reduce(tensor, dst=0, op=dist.ReduceOp.MAX)
    if rank == 0:
        found["reduce"] = tensor
    return found


def uneven() -> dict[str, Any]:
    """Uses chunks of different sizes, strided tensors and empty ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    outputs = [torch.empty(peer + 1) for peer in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    found["all_gather"] = outputs
    sent, received = [rank + peer for peer in range(size)], [peer + rank for peer in range(size)]
    output = torch.empty(sum(received), 2)
    dist.all_to_all_single(output, torch.full((sum(sent), 2), float(rank)), received, sent)
    found["all_to_all_single"] = output
    strided = torch.zeros(4, 6)
    strided.t()[::2].fill_(float(rank + 1))
    dist.all_reduce(strided.t()[::2])
    found["strided"] = strided
    empty = torch.empty(0)
    dist.all_reduce(empty)
    found["empty"] = empty
    return found


def ring_of_messages(count: int) -> list[torch.Tensor]:
    """Each rank sends to the next and receives from the previous one, with several messages of one tag in flight."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = [torch.empty(count) for _ in range(3)]
    works = [dist.irecv(tensor, src=(rank - 1) % size, tag=7) for tensor in received]
    works += [dist.isend(torch.full((count,), 10.0 * rank + i), dst=(rank + 1) % size, tag=7) for i in range(3)]
    for work in works:
        work.wait()
    operations = []
    both = torch.empty(count)
    operations.append(dist.P2POp(dist.isend, torch.full((count,), -1.0 * rank), (rank + 1) % size))
    operations.append(dist.P2POp(dist.irecv, both, (rank - 1) % size))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [*received, both]


def subgroups() -> list[torch.Tensor]:
    """Returns the same number, summed by even and odd ranks, by all ranks, and by the odd ranks again."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(start, size, 2))) for start in (0, 1)]
    found = []
    for group in (groups[rank % 2], None, groups[rank % 2]):
        tensor = torch.tensor([float(rank + 1)])
        dist.all_reduce(tensor, group=group)
        found.append(tensor)
    return found


def objects() -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (10 * rank)})
    shared = [{"from": rank}] if rank == 0 else [None]
    dist.broadcast_object_list(shared, src=0)
    return [gathered, shared]


def ddp_weights(steps: int, **options: Any) -> list[torch.Tensor]:
    """Returns the weights of a small model after training with DistributedDataParallel."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
    unused = options.pop("unused", False)
    if unused:
        model.add_module("unused", copy.deepcopy(model[2]))
        model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    wrapped = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(50 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(torch.randn(16, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def futures() -> tuple[torch.Tensor, bool]:
    """Returns a future's value, and whether its callback got the right one."""
    tensor = torch.full((1000,), float(dist.get_rank() + 1))
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0] / dist.get_world_size())
    return future.wait(), work.is_completed()


def error_of(name: str) -> str:
    """Returns the message of the error that a wrong call raises."""
    wrong = {
        "root": lambda: (
            dist.distributed_c10d._get_default_group()
            .broadcast([torch.ones(2)], _options(dist.BroadcastOptions(), 9))
            .wait()
        ),
        "receiver": lambda: dist.send(torch.ones(2), dst=9),
        "sender": lambda: dist.recv(torch.ones(2), src=9),
        "bits of floats": lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
    }
    try:
        wrong[name]()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _options(options: Any, root: int) -> Any:
    options.rootRank = root
    return options


def mismatch() -> str:
    """Returns a rank's error if one of the ranks calls with another size."""
    count = 8 if dist.get_rank() == 0 else 9
    try:
        dist.all_reduce(torch.ones(count))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def groups_beside_gloo() -> list[float]:
    """Sums over pairs of neighbours, whose group ranks differ from the job's, under a default group of Gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for first in range(size - 1):
        group = dist.new_group([first, first + 1], backend="agspeed")
        if rank in (first, first + 1):
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            found.append(float(tensor))
    return found


def split_in_halves() -> tuple[int, float]:
    """Returns (size, sum of the ranks) of this rank's part, after the whole group was used and split."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    mine = next(i for i, ranks in enumerate(halves) if rank in ranks)
    part = dist.group.WORLD.split_group(halves[mine], group_name=f"half {mine}")
    tensor = torch.tensor([float(rank)])
    part.allreduce([tensor]).wait()
    return part.size(), float(tensor)


def _group_outside_torch(name: str) -> Any:
    """Returns a group of all ranks that torch does not know, so the caller holds its last reference."""
    rank, size = dist.get_rank(), dist.get_world_size()
    options = distributed_c10d._DistributedBackendOptions()
    options.store = dist.PrefixStore(name, distributed_c10d._get_default_store())
    options.group_rank, options.group_size, options.global_ranks_in_group = rank, size, list(range(size))
    options.group_id, options.timeout = name, datetime.timedelta(seconds=20)
    module = native.load()
    assert module is not None
    return module.create_process_group(options)


def dropped_in_a_callback() -> bool:
    """Drops a group's last reference in a callback, which runs on a thread of the group."""
    groups = [_group_outside_torch("dropped in a callback")]
    called = threading.Event()
    work = groups[0].allreduce([torch.ones(4)])
    future = work.get_future().then(lambda _: (time.sleep(0.2), groups.clear(), called.set()))
    work.wait()
    del work, future
    is_called = called.wait(10)
    time.sleep(0.2)  # the group ends meanwhile
    return is_called


def dropped_with_a_callback() -> bool:
    """Drops a group's last reference while a callback of its future waits for Python's GIL."""
    group = _group_outside_torch("dropped")
    called = threading.Event()
    work = group.allreduce([torch.ones(4)])
    future = work.get_future().then(lambda _: (time.sleep(0.2), called.set()))
    work.wait()
    del group, work, future
    return called.wait(10)


def listeners() -> list[str]:
    """Returns the addresses at which this process accepts connections after the ranks have communicated."""
    dist.all_reduce(torch.ones(1000))
    found = psutil.Process().net_connections("inet")
    return [str(each.laddr.ip) for each in found if each.status == psutil.CONN_LISTEN]


def call_after_failure() -> str:
    """Returns the error of the next call in a group that has failed."""
    mismatch()
    try:
        dist.all_reduce(torch.ones(8))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"
