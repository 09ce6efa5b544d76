# SPDX-License-Identifier: Apache-2.0
"""The operations in all their forms: allreduce, allgather, broadcast, alltoall, reducescatter, barrier and join.

Functions without `_async` wait for the result. Functions that end in `_` write into their tensors. Waiting functions
that return new tensors can be differentiated. Calls with the same name at all ranks belong together. Calls without a
name are matched in their order, separately for each kind of operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from agspeed.horovod.torch import autograd, job
from agspeed.horovod.torch.arguments import Adasum, Average, Max, Min, Product, Sum
from agspeed.horovod.torch.async_ops import (
    allgather_async,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
    sparse_allreduce_async,
)
from agspeed.horovod.torch.basics import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from agspeed.horovod.torch.compression import Compression
from agspeed.horovod.torch.handles import poll, start, synchronize
from agspeed.horovod.torch.not_captured import not_captured
from agspeed.horovod.torch.process_sets import ProcessSet, global_process_set

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "cross_rank",
    "cross_size",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]

Tensors = Sequence[torch.Tensor]


# --- allreduce --------------------------------------------------------------------------------------------------------


@not_captured
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Like allreduce_async, but waits. Its backward reduces the gradient in the same way."""
    compressed, ctx = compression.compress(tensor)
    result = autograd.apply(
        autograd.AllReduce, compressed, average, name, op, prescale_factor, postscale_factor, process_set
    )
    reduced: torch.Tensor = compression.decompress(result, ctx)
    return reduced


@not_captured
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Like allreduce_async_, but waits."""
    result: torch.Tensor = synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


@not_captured
def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Like grouped_allreduce_async, but waits. Its backward reduces the gradients in the same way."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    results = autograd.apply(
        autograd.GroupedAllReduce,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        *(tensor for tensor, _ in compressed),
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, compressed, strict=True)]


@not_captured
def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Like grouped_allreduce_async_, but waits."""
    results: list[torch.Tensor] = synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return results


# --- allgather --------------------------------------------------------------------------------------------------------


@not_captured
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Like allgather_async, but waits. Its gradient is the average of all ranks' gradients of this rank's rows."""
    result: torch.Tensor = autograd.apply(autograd.AllGather, tensor, name, process_set)
    return result


@not_captured
def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Like grouped_allgather_async, but waits."""
    return list(autograd.apply(autograd.GroupedAllGather, name, process_set, *tensors))


# --- broadcast --------------------------------------------------------------------------------------------------------


@not_captured
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Like broadcast_async, but waits. The root's gradient is the average over the ranks, other ranks' is zero."""
    result: torch.Tensor = autograd.apply(autograd.Broadcast, tensor, root_rank, name, process_set)
    return result


@not_captured
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Like broadcast_async_, but waits."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


# --- alltoall, reducescatter ------------------------------------------------------------------------------------------


@not_captured
def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Like alltoall_async, but waits. Its backward sends gradients back to the ranks that the rows came from.

    Returns: the rows received; with `splits` also the number of rows from each rank.
    """
    if splits is None:
        return autograd.apply(autograd.AllToAll, tensor, None, name, process_set)
    return tuple(autograd.apply(autograd.AllToAll, tensor, splits, name, process_set))


@not_captured
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Like reducescatter_async, but waits. Its backward gathers the gradients."""
    compressed, ctx = compression.compress(tensor)
    result = autograd.apply(
        autograd.ReduceScatter, name, op, process_set, prescale_factor, postscale_factor, compressed
    )[0]
    reduced: torch.Tensor = compression.decompress(result, ctx)
    return reduced


@not_captured
def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Like grouped_reducescatter_async, but waits."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    results = autograd.apply(
        autograd.ReduceScatter,
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        *(tensor for tensor, _ in compressed),
    )
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, compressed, strict=True)]


# --- barrier, join ----------------------------------------------------------------------------------------------------


@not_captured
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it."""
    synchronize(start("barrier", None, process_set, [], [], lambda _outputs, _rows, _last: None))


@not_captured
def join(device: int = -1) -> int:
    """Says that this rank has no more data, and waits until all ranks have joined. Until then it contributes zeros to
    the reductions of the other ranks.

    device: ignored, because the transport makes the zeros. Returns: the rank that joined last.
    """
    handle = start("join", None, global_process_set, [], [], lambda _outputs, _rows, last: last)
    last: int = synchronize(handle)
    job.current().group.restart_names()
    return last


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of ranks."""
    where = job.current().where
    return where.local_size * where.cross_size == where.size
