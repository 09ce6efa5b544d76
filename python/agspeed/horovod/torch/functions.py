# SPDX-License-Identifier: Apache-2.0
"""Broadcasts at the start of a script: they give all ranks the root's parameters, optimizer state and objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch

from agspeed.errors import UserError, UserTypeError
from agspeed.horovod.exceptions import HorovodInternalError
from agspeed.horovod.torch import job, mpi_ops
from agspeed.horovod.torch.arguments import check_tensors
from agspeed.horovod.torch.process_sets import ProcessSet, global_process_set
from agspeed.transfer import objects, optimizer_state
from agspeed.transfer.optimizer_state import parameters_of

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

_FAILURES: tuple[type[Exception], ...] = (UserTypeError, UserError, HorovodInternalError)
"""The errors that other ranks raise if one rank cannot make or send its object. The message has the error's index."""


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Gives all ranks the root's values, in place.

    params: a state_dict() or other mapping of names to tensors, a list of (name, tensor), or a list of tensors. Values
    that are not tensors do not change. Raises: ValueError for anything else, and for tensors that cannot be sent.
    """
    named = [(f"broadcast_parameters.{name}", tensor.detach()) for name, tensor in _named(params)]
    # contiguous() returns the tensor itself if it is contiguous; tensors of channels_last models are copied.
    dense = [(name, own.contiguous()) for name, own in named]
    _broadcast_all(dense, root_rank)
    for (_, own), (_, received) in zip(named, dense, strict=True):
        if received.data_ptr() != own.data_ptr():
            own.copy_(received)


def _broadcast_all(named: list[tuple[str, torch.Tensor]], root_rank: int) -> None:
    """Broadcasts in place. Raises: ValueError for a tensor that cannot be sent, before anything is sent."""
    if named:
        check_tensors([tensor for _, tensor in named], is_reduction=False)
    handles = [mpi_ops.broadcast_async_(tensor, root_rank, name) for name, tensor in named]
    for handle in handles:
        mpi_ops.synchronize(handle)


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
    """Gives all ranks the root's optimizer state and options, in place. Ranks without state get it, too.

    If an optimizer has no state, its parameters without a gradient get gradients of zeros, as with Horovod.

    model: says which parameters have sparse gradients. Raises: ValueError for LBFGS, whose state is not made of tensors
    alone, and for an optimizer with other groups than the root's. For options that cannot be sent, it raises the errors
    of broadcast_object.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state: its history is not made of tensors alone.")
    if not optimizer.state:
        _leave_gradients(optimizer, model)
    tensors: list[torch.Tensor] = []

    def describe() -> Any:
        nonlocal tensors
        skeleton, tensors = optimizer_state.take_apart(optimizer)
        return [
            skeleton,
            [[str(each.dtype).removeprefix("torch."), tuple(each.shape), each.is_cpu] for each in tensors],
        ]

    name = "broadcast_optimizer_state"
    skeleton, described = _broadcast(describe, root_rank, name, global_process_set)
    is_root = job.current().where.rank == root_rank
    if not is_root:
        tensors = [torch.empty(shape, dtype=getattr(torch, dtype), device="cpu") for dtype, shape, _ in described]
    _broadcast_all([(f"{name}.{at}", tensor) for at, tensor in enumerate(tensors)], root_rank)
    if not is_root:
        received = [(tensor, is_on_host) for tensor, (_, _, is_on_host) in zip(tensors, described, strict=True)]
        optimizer_state.put(optimizer, optimizer_state.unite(optimizer, skeleton, received))


def _leave_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Sets gradients of zeros for parameters that require a gradient and have none."""
    layers = () if model is None else model.modules()
    tables = (each for each in layers if isinstance(each, (torch.nn.Embedding, torch.nn.EmbeddingBag)))
    in_tables = {each.weight for each in tables if each.sparse}
    for parameter in parameters_of(optimizer):
        if not parameter.requires_grad or parameter.grad is not None:
            continue
        is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or (
            isinstance(optimizer, torch.optim.SGD) and parameter in in_tables
        )
        zeros = torch.zeros_like(parameter)
        parameter.grad = zeros.to_sparse(1) if is_sparse else zeros


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's object at all ranks; other ranks' `obj` is ignored.

    Raises: UserTypeError, at all ranks, for types that cannot be sent (transfer/objects.py).
    """
    return _broadcast(lambda: obj, root_rank, name if name is not None else "broadcast_object", process_set)


def _broadcast(make: Callable[[], Any], root_rank: int, name: str, process_set: ProcessSet) -> Any:
    """Returns the result of `make` to all ranks; only the root calls `make`.

    All ranks raise an error if the root cannot make or send the object.
    """
    is_root = job.current().where.rank == root_rank
    made, data, failure = _encoded(make) if is_root else (None, b"", None)
    head = torch.tensor([len(data), failure is not None], dtype=torch.int64, device="cpu")
    mpi_ops.broadcast_(head, root_rank, f"{name}.size", process_set)
    length, has_failed = head.tolist()
    content = torch.empty(length, dtype=torch.uint8, device="cpu")
    if is_root:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    mpi_ops.broadcast_(content, root_rank, f"{name}.data", process_set)
    if failure is not None:
        raise failure
    if is_root:
        return made
    received = objects.decode(content.numpy().tobytes())
    if has_failed:
        _raise(root_rank, name, received)
    return received


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks, by rank. Raises: UserTypeError, at all ranks, if one cannot be sent."""
    own = name if name is not None else "allgather_object"
    _, encoded, failure = _encoded(lambda: obj)
    data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    head = torch.tensor([[len(encoded), failure is not None]], dtype=torch.int64, device="cpu")
    heads = mpi_ops.allgather(head, f"{own}.sizes", process_set).tolist()
    whole = mpi_ops.allgather(data, f"{own}.data", process_set).numpy().tobytes()
    if failure is not None:
        raise failure
    found, at = [], 0
    for place, (length, has_failed) in enumerate(heads):
        found.append(objects.decode(whole[at : at + length]))
        at += length
        if has_failed:
            _raise(place if process_set.ranks is None else process_set.ranks[place], own, found[-1])
    return found


def _encoded(make: Callable[[], Any]) -> tuple[Any, bytes, Exception | None]:
    """Returns (result of `make`, its bytes, None). On failure: (None, the bytes of the reason, the error)."""
    try:
        made = make()
        return made, objects.encode(made), None
    except Exception as error:
        kind = 0 if isinstance(error, TypeError) else 1 if isinstance(error, ValueError) else 2
        return None, objects.encode([kind, str(error)]), error


def _raise(rank: int, name: str, failure: Any) -> NoReturn:
    kind, why = failure
    raise _FAILURES[kind](f"rank {rank} could not send its object to the others in '{name}': {why}")
