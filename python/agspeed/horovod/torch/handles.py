# SPDX-License-Identifier: Apache-2.0
"""Operations under way: starts one by name, and gives it the number that poll() and synchronize() take.

What is under way is kept in C++ (quick.py): a call is one crossing, and so is waiting for it.

Thread-safety: all functions, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from agspeed import native
from agspeed.horovod.exceptions import HorovodInternalError
from agspeed.horovod.torch.arguments import check_tensors, name_of
from agspeed.horovod.torch.not_captured import not_captured
from agspeed.horovod.torch.process_sets import ProcessSet
from agspeed.horovod.torch.quick import quick_synchronize, table

__all__ = ["poll", "reduce", "start", "synchronize"]

Finish = Callable[[list[torch.Tensor], list[int], int], Any]
"""Makes what synchronize() returns of the outputs, the rows received from each rank and the last rank that joined."""

_finish: dict[int, Finish] = {}
"""Of the handles whose operations give something else than their outputs."""


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

    Raises: ValueError for a tensor that cannot be reduced and a name that is under way, HorovodInternalError where the
    job is over.
    """
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

    Without `finish`, synchronize() returns the outputs, or the only one unless `is_list`.

    Raises: ValueError where the name is under way, HorovodInternalError where the job is over.
    """
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
    """Whether synchronize() would return at once. Raises: ValueError for a handle that is none."""
    found: bool | None = table().poll(handle)
    if found is None:
        raise ValueError(
            f"handle {handle} is none of an operation that is under way: it was synchronized, or never given."
        )
    return found


@quick_synchronize
@not_captured
def synchronize(handle: int) -> Any:
    """Waits for an operation; returns its output, or None for a handle that is none any more.

    Raises: HorovodInternalError where it failed.
    """
    finish = _finish.pop(handle, None)
    try:
        if finish is None:
            return table().wait(handle)
        result = table().wait_for_all(handle)
    except RuntimeError as error:
        raise HorovodInternalError(str(error)) from None
    return finish(*result)
