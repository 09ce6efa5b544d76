# SPDX-License-Identifier: Apache-2.0
"""The operations that return at once: each returns a handle for poll() and synchronize() (handles.py).

Functions that end in `_` write into their tensors. Calls with the same name at all ranks belong together. Calls without
a name are matched in their order, separately for each kind of operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from agspeed.horovod.exceptions import HorovodInternalError
from agspeed.horovod.torch.adasum import start_adasum
from agspeed.horovod.torch.arguments import (
    Adasum,
    Average,
    Sum,
    check_rows,
    check_tensors,
    name_of,
    reduction_of,
    rows_per_rank,
)
from agspeed.horovod.torch.handles import reduce, start, synchronize
from agspeed.horovod.torch.process_sets import ProcessSet, global_process_set
from agspeed.horovod.torch.quick import quick_allreduce

__all__ = [
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "reducescatter_async",
    "sparse_allreduce_async",
]

Tensors = Sequence[torch.Tensor]


# --- allreduce --------------------------------------------------------------------------------------------------------


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces over all ranks into a new tensor. Returns: a handle."""
    if average is not None:
        op = reduction_of(op, average)
    elif op is None:
        op = Average
    output = torch.empty_like(tensor)
    if op == Adasum:
        return _start_adasum([tensor], [output], name, process_set, (prescale_factor, postscale_factor))
    return reduce(tensor, output, name, op, prescale_factor, postscale_factor, process_set)


@quick_allreduce(global_process_set)
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces over all ranks in place. Returns: a handle."""
    if average is not None:
        op = reduction_of(op, average)
    elif op is None:
        op = Average
    if op == Adasum:
        return _start_adasum([tensor], [tensor], name, process_set, (prescale_factor, postscale_factor))
    return reduce(tensor, None, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces several tensors as one operation into new tensors. Returns: one handle for all of them."""
    outputs = [torch.empty_like(tensor) for tensor in tensors]
    reduction = reduction_of(op, average)
    return _reduce_group(tensors, outputs, name, reduction, (prescale_factor, postscale_factor), process_set)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces several tensors as one operation in place. Returns: one handle for all of them."""
    reduction = reduction_of(op, average)
    return _reduce_group(tensors, tensors, name, reduction, (prescale_factor, postscale_factor), process_set)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Adds up a sparse tensor: every rank gathers the indices and values of all ranks.

    Returns: a function that waits for the result and returns it.
    """
    if op not in (Average, Sum):
        raise ValueError("sparse tensors can only be summed up: use op=hvd.Average or op=hvd.Sum.")
    own = tensor if tensor.is_coalesced() else tensor.coalesce()
    own_values = own.values().contiguous()
    check_tensors([own_values], is_reduction=False)
    indices = allgather_async(own.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(own_values, f"{name}.values", process_set)

    def wait() -> torch.Tensor:
        gathered_values, gathered_indices = synchronize(values), synchronize(indices)
        if op == Average:
            gathered_values = gathered_values / process_set.size()
        return torch.sparse_coo_tensor(gathered_indices.t(), gathered_values, tensor.size())

    return wait


def _reduce_group(
    inputs: Tensors,
    outputs: Tensors,
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> int:
    if op == Adasum:
        return _start_adasum(inputs, outputs, name, process_set, factors, is_list=True)
    check_tensors(inputs, is_reduction=True)
    name_of(op)
    wanted: dict[str, Any] = {"op": op, "prescale": factors[0], "postscale": factors[1]}
    return start("allreduce", name, process_set, inputs, outputs, is_list=True, **wanted)


def _start_adasum(
    inputs: Tensors,
    outputs: Tensors,
    name: str | None,
    process_set: ProcessSet,
    factors: tuple[float, float],
    is_list: bool = False,
) -> int:
    check_tensors(inputs, is_reduction=True)
    return start_adasum(inputs, outputs, name, process_set, factors, is_list)


# --- allgather --------------------------------------------------------------------------------------------------------


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Gathers the rows of all ranks, in the order of the ranks. Ranks may have different numbers of rows.

    Returns: a handle.
    """
    check_tensors([tensor], is_reduction=False)
    check_rows("allgather", [tensor])
    return start("allgather", name, process_set, [tensor], [])


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Like allgather_async, for several tensors as one operation. Returns: one handle for all of them."""
    check_tensors(tensors, is_reduction=False)
    check_rows("allgather", tensors)
    return start("allgather", name, process_set, tensors, [], is_list=True)


# --- broadcast --------------------------------------------------------------------------------------------------------


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Broadcasts the root's tensor into a new tensor. Returns: a handle.

    root_rank: a global rank of the job, also within a process set.
    """
    return _broadcast(tensor, torch.empty_like(tensor), root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Broadcasts the root's tensor in place. Returns: a handle."""
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def _broadcast(tensor: torch.Tensor, output: torch.Tensor, root: int, name: str | None, process_set: ProcessSet) -> int:
    check_tensors([tensor], is_reduction=False)
    return start("broadcast", name, process_set, [tensor], [output], root=process_set.place_of(root))


# --- alltoall, reducescatter ------------------------------------------------------------------------------------------


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Sends `splits[i]` rows to rank i; without splits, each rank gets equally many. Returns: a handle.

    The result is the rows received, in the order of the ranks, and the number of rows from each rank.
    """
    check_tensors([tensor], is_reduction=False)
    check_rows("alltoall", [tensor])
    wanted = rows_per_rank(splits, tensor.shape[0], process_set.size())
    device = splits.device if isinstance(splits, torch.Tensor) else torch.device("cpu")

    def finish(outputs: list[torch.Tensor], rows: list[int], _last: int) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs[0], torch.tensor(rows, dtype=torch.int32, device=device)

    return start("alltoall", name, process_set, [tensor], [], finish, splits=wanted)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduces, and gives each rank an equal share of the rows. Returns: a handle.

    If the rows do not divide evenly, the first ranks get one row more.
    """
    return _reduce_scatter([tensor], name, op, process_set, (prescale_factor, postscale_factor), is_list=False)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like reducescatter_async, for several tensors as one operation. Returns: one handle for all of them."""
    return _reduce_scatter(tensors, name, op, process_set, (prescale_factor, postscale_factor), is_list=True)


def _reduce_scatter(
    tensors: Tensors,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    factors: tuple[float, float],
    is_list: bool,
) -> int:
    if op == Adasum:
        raise HorovodInternalError(
            "Reducescatter does not support op=hvd.Adasum: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product."
        )
    check_tensors(tensors, is_reduction=True)
    check_rows("reducescatter", tensors)
    name_of(op)
    wanted: dict[str, Any] = {"op": op, "prescale": factors[0], "postscale": factors[1]}
    return start("reducescatter", name, process_set, tensors, [], is_list=is_list, **wanted)
