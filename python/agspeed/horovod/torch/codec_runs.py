# SPDX-License-Identifier: Apache-2.0
"""Reduces the gradients of an optimizer by a codec (`agspeed/distributed/codecs`).

The first collective of a gradient starts when the gradient is ready, under the gradient's name. The others start in
`finish`, in turns.

Threading: hooks of the backward call `start`, one at a time; one thread calls the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from agspeed.distributed.codecs import driver
from agspeed.distributed.codecs.codec import Bucket, Codec, Pending, Steps, average_densely
from agspeed.horovod.torch import mpi_ops
from agspeed.horovod.torch.arguments import Sum
from agspeed.horovod.torch.process_sets import ProcessSet

__all__ = ["CodecRuns", "NamedWire"]


class NamedWire:
    """The collectives of a process set under names that begin with `name` (see `codec.Wire`)."""

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._names = _numbered(name)

    @property
    def rank(self) -> int:
        return self._process_set.rank()

    @property
    def size(self) -> int:
        return self._process_set.size()

    def all_reduce(self, values: torch.Tensor) -> Pending:
        handle = mpi_ops.allreduce_async_(values, name=next(self._names), op=Sum, process_set=self._process_set)
        return lambda: _result(handle)

    def all_gather(self, values: torch.Tensor) -> Pending:
        handle = mpi_ops.allgather_async(values.unsqueeze(0), next(self._names), self._process_set)
        return lambda: _result(handle)

    def all_to_all(self, rows: torch.Tensor) -> Pending:
        handle = mpi_ops.alltoall_async(rows, name=next(self._names), process_set=self._process_set)
        return lambda: _result(handle)[0]


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}.codec.{number}"
        number += 1


def _result(handle: int) -> Any:
    return mpi_ops.synchronize(handle)


class CodecRuns:
    """The gradients of one optimizer in flight. `reduction`: `op` and `process_set` of the optimizer."""

    def __init__(self, codec: Codec, reduction: dict[str, Any]) -> None:
        self._codec, self._process_set = codec, reduction["process_set"]
        self._is_sum = reduction["op"] == Sum
        self._runs: dict[tuple[int, str], driver.Run] = {}

    @torch.no_grad()
    def start(
        self,
        group: int,
        name: str,
        names: Sequence[str],
        gradients: Sequence[torch.Tensor],
        put: Callable[[list[torch.Tensor]], None],
    ) -> None:
        """Starts to reduce a group of gradients, which are dense and contiguous. `put` gets the results, in their
        order."""
        results = list(gradients)
        left = set(range(len(results)))
        by_type: dict[torch.dtype, list[int]] = {}
        for at, gradient in enumerate(gradients):
            by_type.setdefault(gradient.dtype, []).append(at)
        for dtype, places in by_type.items():
            own = name if len(by_type) == 1 else f"{name}.{str(dtype).removeprefix('torch.')}"
            parts = [gradients[at] for at in places]
            values = parts[0].reshape(-1) if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])
            bucket = Bucket(values, tuple(names[at] for at in places), tuple(part.numel() for part in parts))

            def done(bucket: Bucket = bucket, places: list[int] = places) -> None:
                for at, part in zip(places, bucket.values.split(list(bucket.sizes)), strict=True):
                    results[at] = part.view_as(results[at])
                left.difference_update(places)
                if not left:
                    put(results)

            self._runs[group, own] = driver.Run(self._steps(own, bucket), done)

    def finish(self) -> None:
        """Waits for all gradients. Raises: HorovodInternalError if a collective failed."""
        runs, self._runs = [self._runs[key] for key in sorted(self._runs)], {}
        with torch.no_grad():
            driver.finish(runs)

    def _steps(self, name: str, bucket: Bucket) -> Steps:
        wire = NamedWire(name, self._process_set)
        if self._codec.is_dense(bucket):
            yield from average_densely(bucket.values, wire)
        else:
            yield from self._codec.steps(bucket, wire)
        if self._is_sum:
            bucket.values.mul_(wire.size)
