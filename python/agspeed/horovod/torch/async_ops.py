# SPDX-License-Identifier: Apache-2.0
"""The operations that return at once: each gives a handle, which poll() and synchronize() take (handles.py).

Those that end in `_` write into their tensors. A name says which calls of the ranks belong together; without one they
are matched in the order of the calls of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from agspeed.horovod.torch.adasum import start_adasum
from agspeed.horovod.torch.arguments import Adasum, Average, Sum, check_tensors, name_of, reduction_of
from agspeed.horovod.torch.handles import start, synchronize
from agspeed.horovod.torch.process_sets import ProcessSet, global_process_set

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
    return _reduce_all(
        [tensor],
        [torch.empty_like(tensor)],
        name,
        reduction_of(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
        _only,
    )


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
    reduction = reduction_of(op, average)
    return _reduce_all(
        [tensor], [tensor], name, reduction, prescale_factor, postscale_factor, process_set, _first(tensor)
    )


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces several tensors as one operation into new ones. Returns: a handle of them all."""
    outputs = [torch.empty_like(tensor) for tensor in tensors]
    reduction = reduction_of(op, average)
    return _reduce_all(tensors, outputs, name, reduction, prescale_factor, postscale_factor, process_set, _all)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces several tensors as one operation in place. Returns: a handle of them all."""
    reduction = reduction_of(op, average)

    def finish(_work: Any, _outputs: Any) -> list[torch.Tensor]:
        return list(tensors)

    return _reduce_all(tensors, tensors, name, reduction, prescale_factor, postscale_factor, process_set, finish)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Adds up a sparse tensor: every rank gets the indices and values of all. Returns: a callable that waits for it."""
    if op not in (Average, Sum):
        raise ValueError("sparse tensors can only be summed up: use op=hvd.Average or op=hvd.Sum.")
    own = tensor if tensor.is_coalesced() else tensor.coalesce()
    indices = allgather_async(own.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(own.values().contiguous(), f"{name}.values", process_set)

    def wait() -> torch.Tensor:
        gathered_values, gathered_indices = synchronize(values), synchronize(indices)
        if op == Average:
            gathered_values = gathered_values / process_set.size()
        return torch.sparse_coo_tensor(gathered_indices.t(), gathered_values, tensor.size())

    return wait


def _reduce_all(
    inputs: Tensors,
    outputs: Tensors,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    finish: Any,
) -> int:
    check_tensors(inputs, is_reduction=True)
    if op == Adasum:
        return start_adasum(inputs, outputs, name, process_set, (prescale, postscale), finish)
    return start(
        "allreduce",
        name,
        process_set,
        inputs,
        outputs,
        finish,
        reduction=name_of(op),
        prescale=prescale,
        postscale=postscale,
    )


# --- allgather --------------------------------------------------------------------------------------------------------


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Rows of all ranks, one rank's behind the other's; ranks may differ in how many. Returns: a handle."""
    check_tensors([tensor], is_reduction=False)
    return start("allgather", name, process_set, [tensor], [], _only)


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """allgather_async of several tensors as one operation. Returns: a handle of them all."""
    check_tensors(tensors, is_reduction=False)
    return start("allgather", name, process_set, tensors, [], _all)


# --- broadcast --------------------------------------------------------------------------------------------------------


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """The root's tensor, as a new one; `root_rank` is a rank of the job, also in a process set. Returns: a handle."""
    return _broadcast(tensor, torch.empty_like(tensor), root_rank, name, process_set, _only)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """The root's tensor, in place. Returns: a handle."""
    return _broadcast(tensor, tensor, root_rank, name, process_set, _first(tensor))


def _broadcast(
    tensor: torch.Tensor, output: torch.Tensor, root: int, name: str | None, process_set: ProcessSet, finish: Any
) -> int:
    check_tensors([tensor], is_reduction=False)
    return start("broadcast", name, process_set, [tensor], [output], finish, root=process_set.place_of(root))


# --- alltoall, reducescatter ------------------------------------------------------------------------------------------


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Rows for every rank, `splits[i]` of them for rank i; without splits as many for each. Returns: a handle.

    Its result is the rows received, in the order of the ranks, and with splits also how many came from each.
    """
    check_tensors([tensor], is_reduction=False)
    size = process_set.size()
    if splits is None:
        rows = tensor.shape[0] if tensor.dim() else 0
        if rows % size:
            raise ValueError(f"alltoall of {rows} rows over {size} ranks needs splits: give rows for each rank.")
        return start("alltoall", name, process_set, [tensor], [], _only, splits=[rows // size] * size)
    as_tensor = splits if isinstance(splits, torch.Tensor) else torch.tensor(splits, dtype=torch.int32)

    def finish(work: Any, outputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs[0], torch.tensor(work.received_rows(), dtype=torch.int32, device=as_tensor.device)

    return start("alltoall", name, process_set, [tensor], [], finish, splits=[int(each) for each in as_tensor.tolist()])


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduces, and leaves each rank its share of the rows: equal shares, those of the first ranks a row larger where
    they do not add up. Returns: a handle.
    """
    return _reduce_scatter([tensor], name, op, process_set, prescale_factor, postscale_factor, _only)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """reducescatter_async of several tensors as one operation. Returns: a handle of them all."""
    return _reduce_scatter(tensors, name, op, process_set, prescale_factor, postscale_factor, _all)


def _reduce_scatter(
    tensors: Tensors,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    finish: Any,
) -> int:
    check_tensors(tensors, is_reduction=True)
    return start(
        "reducescatter",
        name,
        process_set,
        tensors,
        [],
        finish,
        reduction=name_of(op),
        prescale=prescale,
        postscale=postscale,
    )


# --- barrier, join ----------------------------------------------------------------------------------------------------


def _only(_work: Any, outputs: list[torch.Tensor]) -> torch.Tensor:
    return outputs[0]


def _all(_work: Any, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return outputs


def _first(tensor: torch.Tensor) -> Callable[[Any, Any], torch.Tensor]:
    return lambda _work, _outputs: tensor
