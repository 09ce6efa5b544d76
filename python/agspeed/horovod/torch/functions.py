# SPDX-License-Identifier: Apache-2.0
"""What scripts do once: give all ranks the root's parameters, optimizer state and objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from agspeed.horovod.torch import job, mpi_ops, objects
from agspeed.horovod.torch.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Gives all ranks the root's values, in place.

    params: a state_dict() or other mapping of names to tensors, a list of (name, tensor), or a list of tensors; values
    that are no tensors are left alone. Raises: ValueError for anything else.
    """
    started = []
    for name, tensor in _named(params):
        own = tensor.detach()
        dense = own.contiguous()  # the tensor itself where it is: channels_last models are not
        started.append((own, dense, mpi_ops.broadcast_async_(dense, root_rank, f"broadcast_parameters.{name}")))
    for own, dense, handle in started:
        mpi_ops.synchronize(handle)
        if dense.data_ptr() != own.data_ptr():
            own.copy_(dense)


def _named(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        pairs: Iterable[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor):
        pairs = [each if isinstance(each, tuple) else (str(at), each) for at, each in enumerate(params)]
    else:
        raise ValueError(f"invalid params of type: {type(params)}: give a state_dict() or named_parameters().")
    return [(str(name), tensor) for name, tensor in pairs if isinstance(tensor, torch.Tensor)]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Gives all ranks the root's optimizer state and options; ranks that have no state yet get it.

    model: not needed, as no step is taken to make state. Raises: ValueError for LBFGS, whose state is no tensors.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state: its history is not made of tensors alone.")
    is_root = job.current().where.rank == root_rank
    tensors: list[torch.Tensor] = []
    skeleton = _extract(optimizer.state_dict(), tensors) if is_root else None
    described = [[str(each.dtype).removeprefix("torch."), tuple(each.shape)] for each in tensors]
    skeleton, described = broadcast_object([skeleton, described], root_rank, "broadcast_optimizer_state")
    if not is_root:
        tensors = [torch.empty(shape, dtype=getattr(torch, dtype), device="cpu") for dtype, shape in described]
    handles = [
        mpi_ops.broadcast_async_(tensor, root_rank, f"broadcast_optimizer_state.{at}")
        for at, tensor in enumerate(tensors)
    ]
    for handle in handles:
        mpi_ops.synchronize(handle)
    if not is_root:
        optimizer.load_state_dict(_insert(skeleton, tensors))


_EXTRACTED = "agspeed tensor number"
"""The key of what stands in the place of a tensor that is sent by itself."""


def _extract(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with its tensors moved to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().contiguous())
        return {_EXTRACTED: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: _extract(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_extract(each, tensors) for each in value)
    return value


def _insert(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of _extract."""
    if isinstance(value, dict):
        if value.keys() == {_EXTRACTED}:
            return tensors[value[_EXTRACTED]]
        return {key: _insert(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_insert(each, tensors) for each in value)
    return value


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object at all ranks; `obj` is read at the root alone.

    Raises: UserTypeError at the root for types that cannot be sent (objects.py), HorovodInternalError elsewhere then.
    """
    is_root = job.current().where.rank == root_rank
    own = name if name is not None else "broadcast_object"
    data = objects.encode(obj) if is_root else b""
    length = torch.tensor([len(data)], device="cpu")
    mpi_ops.broadcast_(length, root_rank, f"{own}.size", process_set)
    content = torch.empty(int(length), dtype=torch.uint8, device="cpu")
    if is_root and data:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    mpi_ops.broadcast_(content, root_rank, f"{own}.data", process_set)
    return obj if is_root else objects.decode(content.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in their order. Raises: as broadcast_object."""
    own = name if name is not None else "allgather_object"
    data = torch.frombuffer(bytearray(objects.encode(obj)), dtype=torch.uint8)
    lengths = mpi_ops.allgather(torch.tensor([data.numel()], device="cpu"), f"{own}.sizes", process_set).tolist()
    whole = mpi_ops.allgather(data, f"{own}.data", process_set).numpy().tobytes()
    found, at = [], 0
    for length in lengths:
        found.append(objects.decode(whole[at : at + length]))
        at += length
    return found
