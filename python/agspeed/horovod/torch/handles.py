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
    work: Any
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
    request = module.NamedRequest(kind=kind, name=own, cacheable=name is not None, **wanted)
    try:
        work = group.start(request, [tensor.detach() for tensor in inputs], [tensor.detach() for tensor in outputs])
    except (RuntimeError, ValueError) as error:
        raise HorovodInternalError(str(error)) from None
    with _lock:
        handle = next(_numbers)
        _pending[handle] = _Pending(work, finish)
    return handle


def poll(handle: int) -> bool:
    """Whether synchronize() would return at once. Raises: ValueError for a handle that is none."""
    pending = _pending.get(handle)
    if pending is None:
        raise ValueError(
            f"handle {handle} is none of an operation that is under way: it was synchronized, or never given."
        )
    return bool(pending.work.poll())


def synchronize(handle: int) -> Any:
    """Waits for an operation; returns its output, or None for a handle that is none any more.

    Raises: HorovodInternalError where it failed.
    """
    with _lock:
        pending = _pending.pop(handle, None)
    if pending is None:
        return None
    try:
        outputs = pending.work.wait()
    except (RuntimeError, ValueError) as error:
        raise HorovodInternalError(str(error)) from None
    return pending.finish(pending.work, outputs)
