# SPDX-License-Identifier: Apache-2.0
"""Operations under way: starts one by name, and gives it the number that poll() and synchronize() take.

Thread-safety: all functions, from any thread.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agspeed import native
from agspeed.horovod.exceptions import HorovodInternalError
from agspeed.horovod.torch import job
from agspeed.horovod.torch.process_sets import ProcessSet

__all__ = ["poll", "start", "synchronize"]

Finish = Callable[[Any, list[torch.Tensor]], Any]
"""Makes what synchronize() returns of the native work and its outputs."""


@dataclass
class _Pending:
    works: list[tuple[Any, list[int]]]
    """With the places of their outputs: tensors of several types go as an operation for each type."""
    finish: Finish


_pending: dict[int, _Pending] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


def start(
    kind: str,
    name: str | None,
    process_set: ProcessSet,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    finish: Finish,
    **wanted: Any,
) -> int:
    """Starts an operation of comm/named; `wanted` are further fields of its request.

    Raises: HorovodInternalError where the job is over or the name is under way.
    """
    group = process_set.group()
    own = name if name is not None else job.current().next_name(process_set.process_set_id, kind)
    module: Any = native.load()
    by_type: dict[torch.dtype | None, list[int]] = {}
    for at, tensor in enumerate(inputs):
        by_type.setdefault(tensor.dtype, []).append(at)
    works = []
    try:
        for dtype, places in (by_type or {None: []}).items():
            full = own if len(by_type) < 2 else f"{own}.{dtype}"
            request = module.NamedRequest(kind=kind, name=full, cacheable=name is not None, **wanted)
            sources = [inputs[at].detach() for at in places]
            targets = [outputs[at].detach() for at in places] if outputs else []
            works.append((group.start(request, sources, targets), places))
    except (RuntimeError, ValueError) as error:
        raise HorovodInternalError(str(error)) from None
    with _lock:
        handle = next(_numbers)
        _pending[handle] = _Pending(works, finish)
    return handle


def poll(handle: int) -> bool:
    """Whether synchronize() would return at once. Raises: ValueError for a handle that is none."""
    pending = _pending.get(handle)
    if pending is None:
        raise ValueError(
            f"handle {handle} is none of an operation that is under way: it was synchronized, or never given."
        )
    return all(work.poll() for work, _ in pending.works)


def synchronize(handle: int) -> Any:
    """Waits for an operation; returns its output, or None for a handle that is none any more.

    Raises: HorovodInternalError where it failed.
    """
    with _lock:
        pending = _pending.pop(handle, None)
    if pending is None:
        return None
    outputs: dict[int, torch.Tensor] = {}
    try:
        for work, places in pending.works:
            outputs |= zip(places, work.wait(), strict=True)
    except (RuntimeError, ValueError) as error:
        raise HorovodInternalError(str(error)) from None
    return pending.finish(pending.works[0][0], [outputs[at] for at in sorted(outputs)])
