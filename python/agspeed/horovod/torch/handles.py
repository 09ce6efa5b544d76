# SPDX-License-Identifier: Apache-2.0
"""Starts operations by name. Each gets a handle, the number that poll() and synchronize() take.

A C++ table keeps the operations in flight (quick.py), so starting one and waiting for one each cross into C++ once.

Thread-safety: any thread may call all functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from agspeed import native
from agspeed.horovod.exceptions import HorovodInternalError
from agspeed.horovod.torch import job
from agspeed.horovod.torch.arguments import check_tensors, name_of
from agspeed.horovod.torch.not_captured import not_captured
from agspeed.horovod.torch.process_sets import ProcessSet
from agspeed.horovod.torch.quick import quick_synchronize, table

__all__ = ["poll", "reduce", "start", "synchronize"]

Finish = Callable[[list[torch.Tensor], list[int], int], Any]
"""Takes the outputs, the rows received from each rank and the last rank that joined. Makes synchronize()'s result."""

_finish: dict[int, Finish] = {}
"""By handle, for operations whose result is not just their outputs."""


@not_captured
def reduce(
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> int:
    """Starts the reduction of one tensor over the set's ranks, into `output` or in place. Returns: a handle.

    Raises: ValueError for a tensor that cannot be reduced, for a name that is already in flight, and before the
    training of an elastic job that goes on (`Job.is_early`); HorovodInternalError if the job is over.
    """
    job.current().check_not_early()
    group = process_set.group()
    module: Any = native.load()
    again: int | None = module.reduce_again(table(), group, tensor, output, name, op, prescale, postscale)
    if again is not None:
        return again
    try:
        handle: int = table().reduce(group, tensor, output, name, op, prescale, postscale)
    except (RuntimeError, ValueError) as error:
        name_of(op)
        check_tensors([tensor], is_reduction=True)
        if isinstance(error, ValueError):
            raise
        raise HorovodInternalError(str(error)) from None
    return handle


@not_captured
def start(
    kind: str,
    name: str | None,
    process_set: ProcessSet,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    finish: Finish | None = None,
    is_list: bool = False,
    **wanted: Any,
) -> int:
    """Starts an operation of comm/named; `wanted` are further fields of its request. Returns: a handle.

    Without `finish`, synchronize() returns the list of outputs if `is_list`, else the only output.

    Raises: ValueError if the name is already in flight, and before the training of an elastic job that goes on
    (`Job.is_early`); HorovodInternalError if the job is over.
    """
    job.current().check_not_early()
    group = process_set.group()
    module: Any = native.load()
    try:
        request = module.NamedRequest(kind=kind, name=name, **wanted)
        handle: int = table().start(group, request, inputs, outputs, is_list)
    except RuntimeError as error:
        raise HorovodInternalError(str(error)) from None
    if finish is not None:
        _finish[handle] = finish
    return handle


@not_captured
def poll(handle: int) -> bool:
    """Whether synchronize() would return at once. Raises: ValueError for a handle of no operation in flight."""
    found: bool | None = table().poll(handle)
    if found is None:
        raise ValueError(
            f"handle {handle} is none of an operation that is under way: it was synchronized, or never given."
        )
    return found


@quick_synchronize
@not_captured
def synchronize(handle: int) -> Any:
    """Waits for an operation and returns its output, or None if the handle is no longer valid.

    Raises: HorovodInternalError if the operation failed.
    """
    finish = _finish.pop(handle, None)
    try:
        if finish is None:
            return table().wait(handle)
        result = table().wait_for_all(handle)
    except RuntimeError as error:
        raise HorovodInternalError(str(error)) from None
    return finish(*result)
