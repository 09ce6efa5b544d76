# SPDX-License-Identifier: Apache-2.0
"""Functions with which ranks train and shard models in tests, on every rank of a default group, over any backend."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH = 24
CLASSES = 7  # not a multiple of any number of ranks


def model(depth: int = 2, classes: int = CLASSES) -> nn.Sequential:
    """Returns a model that is the same on every rank."""
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, classes))


def batches(count: int) -> Iterator[torch.Tensor]:
    """Yields batches that differ between ranks."""
    generator = torch.Generator().manual_seed(50 + dist.get_rank())
    for _ in range(count):
        yield torch.randn(8, WIDTH, generator=generator)


def train(wrapped: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for batch in batches(steps):
        optimizer.zero_grad()
        wrapped(batch).square().mean().backward()
        optimizer.step()


def weights(of: nn.Module) -> list[torch.Tensor]:
    """Returns whole tensors; sharded parameters are gathered."""
    values = (parameter.detach() for parameter in of.parameters())
    return [(value.full_tensor() if isinstance(value, DTensor) else value).clone() for value in values]


# --- DistributedDataParallel ------------------------------------------------------------------------------------------


def ddp(steps: int, scale: float = 1.0) -> list[torch.Tensor]:
    """Plain training, with losses multiplied by `scale`."""
    wrapped = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for batch in batches(steps):
        optimizer.zero_grad()
        (scale * wrapped(batch).square().mean()).backward()
        optimizer.step()
    return weights(wrapped)


def ddp_with_hook(hook: str) -> list[torch.Tensor]:
    wrapped = DistributedDataParallel(model())
    if hook == "bf16":
        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif hook == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    else:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1), 5)
    return weights(wrapped)


def ddp_accumulating() -> list[torch.Tensor]:
    """Gradients of two batches out of three are accumulated without an exchange."""
    wrapped = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for index, batch in enumerate(batches(6)):
        is_last = index % 3 == 2
        with contextlib.nullcontext() if is_last else wrapped.no_sync():
            wrapped(batch).square().mean().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return weights(wrapped)


def ddp_with_uneven_inputs(sharded_optimizer: bool) -> list[torch.Tensor]:
    """Rank r has 2 + r batches. Ranks without further batches shadow the collectives of the others."""
    wrapped = DistributedDataParallel(model())
    parameters = wrapped.parameters()
    if sharded_optimizer:
        optimizer: Any = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
    with Join([wrapped, optimizer]) if sharded_optimizer else wrapped.join():
        train(wrapped, optimizer, 2 + dist.get_rank())
    return weights(wrapped)


# --- sparse tensors ---------------------------------------------------------------------------------------------------


def ddp_with_sparse_embedding(steps: int = 3) -> list[torch.Tensor]:
    """Every rank looks up words of its own, some of them several times."""
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Linear(6, 3)))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(70 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        words = torch.randint(0, 20, (4 + dist.get_rank(), 5), generator=generator)
        wrapped(words).square().mean().backward()
        optimizer.step()
    return weights(wrapped)


def _sparse(sizes: list[int], sparse_dims: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a sparse tensor of this rank with `count` elements, not all of them different."""
    generator = torch.Generator().manual_seed(90 + dist.get_rank())
    indices = torch.stack([torch.randint(0, size, (count,), generator=generator) for size in sizes[:sparse_dims]])
    values = torch.randint(-9, 9, (count, *sizes[sparse_dims:]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, sizes)


def sparse_sums() -> list[torch.Tensor]:
    """Sums of several shapes and types. Ranks have different numbers of elements, and some have none."""
    found = []
    for sizes, sparse_dims in (([50], 1), ([7, 5], 2), ([40, 3, 2], 1)):
        for dtype in (torch.float32, torch.float64, torch.int64):
            for count in (5 + dist.get_rank(), 3 * dist.get_rank(), 0):
                tensor = _sparse(sizes, sparse_dims, count, dtype)
                dist.all_reduce(tensor)
                assert tensor.is_coalesced()
                found.append(tensor.to_dense())
    return found


def sparse_sums_beside_others() -> list[tuple[float, float]]:
    """Returns sums of a sparse and of a dense tensor. All operations are in flight at once, and ranks are late in
    turn."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sparse, dense, works = [], [], []
    for step in range(20):
        if step % size == rank:
            time.sleep(0.01)
        sparse.append(torch.full((3,), rank + 1.0).to_sparse())
        dense.append(torch.full((3,), rank + 1.0))
        works += [dist.all_reduce(each[-1], async_op=True) for each in (sparse, dense)]
    for work in reversed(works):
        work.wait()
    return [(float(a.to_dense()[2]), float(b[2])) for a, b in zip(sparse, dense, strict=True)]


def wrong_sparse_sum(name: str) -> str:
    """Returns the error of an invalid sum."""
    tensor = torch.eye(3 + (dist.get_rank() if name == "sizes" else 0)).to_sparse()
    try:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX if name == "operation" else dist.ReduceOp.SUM)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


# --- sharded parameters -----------------------------------------------------------------------------------------------


def fsdp(
    steps: int = 4, hybrid: bool = False, precision: str = "", accumulate: bool = False, **options: Any
) -> list[torch.Tensor]:
    size = dist.get_world_size()
    if hybrid:
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copies", "shards"))
    else:
        mesh = init_device_mesh("cpu", (size,))
    if precision:
        options["mp_policy"] = MixedPrecisionPolicy(getattr(torch, precision), getattr(torch, precision))
    sharded = model()
    for layer in sharded:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(sharded, mesh=mesh, **options)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=0.01)
    if accumulate:
        sharded.set_requires_gradient_sync(False)
        sharded(next(batches(1))).square().mean().backward()
        sharded.set_requires_gradient_sync(True)
    train(sharded, optimizer, steps)
    total = torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)
    return [*weights(sharded), total.full_tensor() if isinstance(total, DTensor) else total]


def fsdp_with_factor(factor: float) -> list[torch.Tensor]:
    """Divides gradients by a number that is not the number of ranks."""
    sharded = model()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    sharded.set_gradient_divide_factor(factor)
    train(sharded, torch.optim.SGD(sharded.parameters(), lr=0.1), 3)
    return weights(sharded)


def tensor_parallel() -> list[torch.Tensor]:
    """A two-layer block whose first layer is split by columns and whose second layer by rows."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    for batch in torch.randn(3, 8, WIDTH, generator=torch.Generator().manual_seed(9)):
        optimizer.zero_grad()
        block(batch).square().mean().backward()
        optimizer.step()
    return weights(block)


# --- tensors on a mesh ------------------------------------------------------------------------------------------------

_PLACEMENTS = {
    "rows": [Shard(0)],
    "columns": [Shard(1)],
    "everywhere": [Replicate()],
    "sum": [Partial()],
    "average": [Partial("avg")],
    "maximum": [Partial("max")],
}


def redistributed(source: str, target: str, rows: int, columns: int) -> torch.Tensor:
    """Changes a tensor's placement from one to another. Returns the whole tensor."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    if source in ("rows", "columns", "everywhere"):
        start = distribute_tensor(whole, mesh, _PLACEMENTS[source])
    else:
        start = DTensor.from_local(whole + dist.get_rank(), mesh, _PLACEMENTS[source], run_check=False)
    return start.redistribute(mesh, _PLACEMENTS[target]).full_tensor()


def multiplied() -> torch.Tensor:
    """Products of sharded matrices, on a mesh of two dimensions if there are four ranks."""
    size = dist.get_world_size()
    shape = (2, size // 2) if size > 2 else (size, 1)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("a", "b"))
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(12, 12, generator=generator) for _ in range(2))
    sharded = distribute_tensor(left, mesh, [Shard(0), Shard(1)])
    product = sharded @ distribute_tensor(right, mesh, [Replicate(), Shard(0)])
    return (product + 1).full_tensor()


# --- checkpoints ------------------------------------------------------------------------------------------------------


def saved_and_loaded(folder: Path, in_background: bool) -> bool:
    """Saves a model sharded by rows and loads it sharded by columns. Returns True if all came back, objects
    included."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(size * 6 * 5, dtype=torch.float32).reshape(size * 6, 5)
    state = {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "step": 17, "own": {"copied": torch.ones(3)}}
    path = str(folder / ("background" if in_background else "plain"))
    if in_background:
        checkpoint.async_save(state, checkpoint_id=path).result()
    else:
        checkpoint.save(state, checkpoint_id=path)
    dist.barrier()
    empty = distribute_tensor(torch.zeros_like(whole), mesh, [Shard(1)])
    found: dict[str, Any] = {"weight": empty, "step": 0, "own": {"copied": torch.zeros(3)}}
    checkpoint.load(found, checkpoint_id=path)
    copied = found["own"]["copied"]
    return torch.equal(found["weight"].full_tensor(), whole) and found["step"] == 17 and bool((copied == 1).all())


# --- pipelines --------------------------------------------------------------------------------------------------------


def pipeline(schedule: str) -> list[torch.Tensor]:
    """One layer per rank. Returns the gradients of this rank's layer, and the losses on the last rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layer = model(size)[rank]
    stage = PipelineStage(layer, rank, size, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    steps = kind(stage, n_microbatches=2 * size, loss_fn=lambda output, target: (output - target).square().mean())
    generator = torch.Generator().manual_seed(4)
    whole = torch.randn(4 * size, WIDTH, generator=generator)
    losses: list[torch.Tensor] = []
    for _ in range(2):
        if rank == 0:
            steps.step(whole)
        elif rank == size - 1:
            steps.step(target=torch.zeros(4 * size, WIDTH), losses=losses)
        else:
            steps.step()
    gradients = [parameter.grad for parameter in layer.parameters()]
    return [each for each in gradients if each is not None] + [loss.detach() for loss in losses]


def exchanged_with_neighbours(count: int) -> list[torch.Tensor]:
    """Batches of sends and receives of unequal sizes in both directions at once, as pipeline schedules make them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    found = []
    for round_ in range(3):
        from_left, from_right = torch.empty(count + left), torch.empty(count + right, dtype=torch.bfloat16)
        operations = [
            dist.P2POp(dist.irecv, from_left, left),
            dist.P2POp(dist.isend, torch.full((count + rank,), float(rank + round_)), right),
            dist.P2POp(dist.isend, torch.full((count + rank,), float(rank), dtype=torch.bfloat16), left),
            dist.P2POp(dist.irecv, from_right, right),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        found += [from_left, from_right]
    return found
