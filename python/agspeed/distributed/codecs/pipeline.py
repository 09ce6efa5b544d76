# SPDX-License-Identifier: Apache-2.0
"""Runs a codec over the buckets of `DistributedDataParallel`.

The wrapper calls `Pipeline.reduce` for one bucket after another, in the same order at all ranks. Each call starts its
bucket and then advances the earlier ones by one collective, so exchanges overlap with the backward. The call for the
last bucket finishes all of them.

Threading: the backward's thread calls everything. If a backward was abandoned, the next one begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import distributed

from agspeed.distributed.codecs import driver
from agspeed.distributed.codecs.codec import Bucket, Codec, Pending, agree
from agspeed.errors import UserError

__all__ = ["GroupWire", "Pipeline"]

_DIFFERENT_CODECS = "the ranks have set different codecs for their gradients ({}): set the same one at all."


class GroupWire:
    """The collectives of a group of torch, over any backend (see `codec.Wire`)."""

    def __init__(self, group: Any) -> None:
        self.group = group

    @property
    def rank(self) -> int:
        return distributed.get_rank(self.group)

    @property
    def size(self) -> int:
        return distributed.get_world_size(self.group)

    def all_reduce(self, values: torch.Tensor) -> Pending:
        return _waiting(distributed.all_reduce(values, group=self.group, async_op=True), values)

    def all_gather(self, values: torch.Tensor) -> Pending:
        flat = values.reshape(-1)  # Gloo takes rows in one dimension only
        rows = flat.new_empty(self.size * flat.numel())
        work = distributed.all_gather_into_tensor(rows, flat, group=self.group, async_op=True)
        return _waiting(work, rows.view(self.size, *values.shape))

    def all_to_all(self, rows: torch.Tensor) -> Pending:
        received = torch.empty_like(rows)
        return _waiting(distributed.all_to_all_single(received, rows, group=self.group, async_op=True), received)


def _waiting(work: Any, result: torch.Tensor) -> Pending:
    def wait() -> torch.Tensor:
        work.wait()
        return result

    return wait


class Pipeline:
    """A codec and the buckets in flight of one wrapper. `names`: of the parameters that the wrapper reduces."""

    def __init__(self, codec: Codec, names: Mapping[torch.Tensor, str], group: Any) -> None:
        self.codec = codec
        self._names, self._wire = names, GroupWire(group)
        self._has_agreed = False
        self._runs: list[driver.Run] = []

    @torch.no_grad()
    def reduce(self, origin: Any) -> Any:
        """Starts to average a bucket of torch. Returns a `torch.futures.Future` of the bucket's values.

        Raises: UserError, at all ranks, if their codecs differ; the errors of the backend.
        """
        if origin.index() == 0:
            self._runs = []
        try:
            return self._reduce(origin)
        except BaseException:
            self._runs = []
            raise

    def _reduce(self, origin: Any) -> Any:
        values = origin.buffer()
        if not self._has_agreed:
            self._agree(values.device)
        parameters = origin.parameters()
        bucket = Bucket(
            values, tuple(map(self._name_of, parameters)), tuple(each.numel() for each in parameters), origin
        )
        if self.codec.is_dense(bucket):
            future, started = self._dense(values), None
        else:
            future = torch.futures.Future(devices=[] if values.is_cpu else [values.device])
            started = driver.Run(self.codec.steps(bucket, self._wire), partial(future.set_result, values))
        self._runs = driver.advance(self._runs)
        if started is not None and not started.is_done:
            self._runs.append(started)
        if origin.is_last():
            runs, self._runs = self._runs, []
            driver.finish(runs)
        return future

    def _dense(self, values: torch.Tensor) -> Any:
        """Averages without waiting, as the wrapper does by itself."""
        work: Any = distributed.all_reduce(values.div_(self._wire.size), group=self._wire.group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def _agree(self, device: torch.device) -> None:
        try:
            steps = agree(self.codec.describe(), self._wire, device, _DIFFERENT_CODECS)
            driver.finish([driver.Run(steps, lambda: None)])
        except RuntimeError as error:
            error.add_note(
                f"This rank's gradients go through {self.codec.describe()}. If another rank has set no codec, set the "
                "same one there, or none at all ranks."
            )
            raise
        self._has_agreed = True

    def _name_of(self, parameter: torch.Tensor) -> str:
        if (name := self._names.get(parameter)) is None:
            raise UserError(
                f"a parameter of shape {tuple(parameter.shape)} was not in the model when its codec was set: set "
                "codecs after the last change of the parameters."
            )
        return name
