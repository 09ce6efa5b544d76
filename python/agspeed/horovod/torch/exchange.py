# SPDX-License-Identifier: Apache-2.0
"""Exchange: reduces the gradients of one optimizer over the ranks.

Hooks and operations are C++ (``comm/horovod/gradient_exchange.h``). Python runs the user's compressors and codecs, and
makes sparse gradients dense if the user asks for it.
"""

from __future__ import annotations

import operator
import weakref
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from agspeed import native
from agspeed.distributed.codecs.auto import Auto
from agspeed.distributed.codecs.codec import Codec
from agspeed.errors import UserError
from agspeed.horovod.exceptions import HorovodInternalError
from agspeed.horovod.torch import job, mpi_ops
from agspeed.horovod.torch.codec_runs import CodecRuns
from agspeed.horovod.torch.compression import Compression, described
from agspeed.horovod.torch.functions import allgather_object
from agspeed.horovod.torch.not_captured import not_captured
from agspeed.horovod.torch.process_sets import ProcessSet
from agspeed.horovod.torch.wrapped import ParameterNames
from agspeed.log import logger
from agspeed.transfer.optimizer_state import parameters_of

__all__ = ["Exchange"]

_TOO_MANY_BACKWARDS = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally."
)
_CHANGED_TOO_LATE = (
    "the parameters of an optimizer may not change while their gradients are being reduced: add, remove and replace "
    "parameters before loss.backward() or after optimizer.step()."
)


class Exchange:
    """Reduces the gradients of one optimizer (see the module's docstring).

    Args:
        groups: lists of parameters that are reduced together. Every other parameter is reduced alone.
        reduction: keyword arguments for allreduce_async_().
        options: (backward_passes_per_step, sparse_as_dense), see DistributedOptimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: ParameterNames,
        groups: list[list[torch.Tensor]],
        compression: Any,
        reduction: dict[str, Any],
        options: tuple[int, bool],
    ) -> None:
        self._optimizer, self._names, self._reduction = optimizer, names, reduction
        self._compression = self._given_compression = compression
        self._passes, self._is_sparse_dense = options
        self._groups = groups
        self._others: list[Callable[[], None]] = []
        self._codec_runs: CodecRuns | None = None
        self.is_synchronized, self.should_synchronize = False, True
        process_set: ProcessSet = reduction["process_set"]
        current = job.current()
        if isinstance(compression, Codec):
            self._codec_runs = CodecRuns(compression, reduction)
        self._has_agreed = self._codec_runs is None
        is_alone = process_set.size() == 1 and not current.options.is_elastic and self._codec_runs is None
        self._is_active = process_set.included() and not is_alone
        self._native: Any = None
        self._parameters: list[torch.Tensor] = []
        if self._is_active:
            self._make()
            job.followers.add(self)

    def job_began(self) -> None:
        """Makes gradients go through the new job from now on."""
        self._native, self._parameters, self._others = None, [], []
        if isinstance(self._given_compression, Codec):
            self._compression, self._has_agreed = self._given_compression, False
            self._codec_runs = CodecRuns(self._given_compression, self._reduction)
        if isinstance(self._given_compression, Auto):
            self._given_compression.restart()
        if self._reduction["process_set"].process_set_id is not None:
            self._make()

    def _make(self) -> None:
        """Makes the C++ exchange for all current parameters of the optimizer."""
        parameters = self._parameters = parameters_of(self._optimizer)
        self._names.follow(parameters)
        numbers = {parameter: at for at, parameter in enumerate(parameters)}
        present = [[each for each in group if each in numbers] for group in self._groups]
        self._groups = [group for group in present if group]
        together = [[numbers[each] for each in group] for group in self._groups]
        in_group = {number for group in together for number in group}
        alone = [[number] for number in range(len(parameters)) if number not in in_group]
        self._members = sorted([*together, *alone], key=min)
        own = weakref.ref(self)

        def refuse(_parameter: int) -> None:
            raise AssertionError(_TOO_MANY_BACKWARDS)

        def start(group: int) -> None:
            if (exchange := own()) is not None:
                exchange._start_other(group)

        def is_current() -> bool:
            exchange = own()
            if exchange is not None and not exchange._has_agreed:
                exchange._agree()
            return exchange is None or exchange._is_current()

        module: Any = native.load()
        process_set: ProcessSet = self._reduction["process_set"]
        self._native = module.GradientExchange(
            group=process_set.group(),
            parameters=parameters,
            members=self._members,
            names=[self._name_of(members) for members in self._members],
            op=self._reduction["op"],
            prescale=self._reduction.get("prescale_factor", 1.0),
            postscale=self._reduction.get("postscale_factor", 1.0),
            half=self._compression is Compression.fp16,
            other=self._compression not in (Compression.none, Compression.fp16),
            sparse_as_dense=self._is_sparse_dense,
            passes=self._passes,
            refuse=refuse,
            start=start,
            is_current=is_current,
        )

    @not_captured
    def _agree(self) -> None:
        """Checks, before the first reduction in a job, that all ranks have the same codec.

        A rank without a codec makes no check. It reduces a gradient of the same name, so the coordinator finds the
        difference, and the check cannot wait for that rank for ever.

        Raises, at all ranks: UserError that lists the codecs if they differ; HorovodInternalError if a rank has none.
        """
        process_set, name = self._reduction["process_set"], self._name_of(self._members[0])
        own = described(self._compression)
        number = zlib.crc32(own.encode()) >> 8
        # Ranks that have joined add zeros. The numbers x of the other ranks are equal if and only if their count times
        # the sum of x * x is the square of the sum of x.
        sums = torch.tensor([1, number, number * number], dtype=torch.int64, device="cpu")
        mpi_ops.allreduce_(sums, name=name, op=mpi_ops.Sum, process_set=process_set)
        count, total, squares = sums.tolist()
        if count * squares != total * total:
            listed = "; ".join(
                f"rank {rank}: {each}" for rank, each in enumerate(allgather_object(own, name, process_set))
            )
            raise UserError(
                f"the ranks have set different compressions of their gradients ({listed}): pass the same `compression` "
                "to DistributedOptimizer() at all of them."
            )
        self._has_agreed = True

    def _is_current(self) -> bool:
        """Whether the optimizer still has the parameters of the C++ exchange: the same objects in the same order."""
        own = parameters_of(self._optimizer)
        return len(own) == len(self._parameters) and all(map(operator.is_, own, self._parameters))

    def _name_of(self, members: list[int]) -> str:
        first = self._names[self._parameters[members[0]]]
        return first if len(members) == 1 else f"group.{first}.{len(members)}"

    def set_passes(self, passes: int) -> None:
        self._passes = passes
        if self._native is not None:
            self._native.set_passes(passes)

    @not_captured
    def is_under_way(self) -> bool:
        """Whether gradients are being reduced."""
        return self._native is not None and self._native.is_under_way()

    def check_may_change(self) -> None:
        """Raises: UserError while gradients are being reduced."""
        if self.is_under_way():
            raise UserError(_CHANGED_TOO_LATE)

    def reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Wraps a closure so that its gradients are reduced when it returns.

        It reduces no gradients that the user's closure has already reduced, and none within skip_synchronize().
        """

        def run() -> Any:
            self.is_synchronized = False
            loss = closure()
            if self.should_synchronize and (self.is_under_way() or not self.is_synchronized):
                self.synchronize()
            return loss

        return run

    @not_captured
    def synchronize(self) -> None:
        """Waits until all gradients are reduced. Gradients that this rank has not computed count as zeros.

        Raises: UserError if parameters have changed while their gradients were being reduced; HorovodInternalError if a
        reduction failed.
        """
        if not self._is_active:
            self.is_synchronized = True
            return
        has_changed_too_late = False
        if not self._is_current():
            has_changed_too_late = self.is_under_way()
            if not has_changed_too_late:
                self._make()
        if not self._has_agreed and self._members:
            self._agree()
        others = self._others
        try:
            self._native.start_missing()
            for finish in others:
                finish()
            if self._codec_runs is not None:
                self._codec_runs.finish()
        finally:
            self._others = []
            try:
                self._native.wait()
            except RuntimeError as error:
                raise HorovodInternalError(str(error)) from None
        if has_changed_too_late:
            raise UserError(_CHANGED_TOO_LATE)
        self.is_synchronized = True
        if isinstance(self._compression, Auto) and self._compression.has_given_up():
            logger.info("%s: %s.", self._compression.name, self._compression.sentence())
            self._compression, self._codec_runs = Compression.none, None
            self._make()
        if (tuner := job.current().tuner) is not None:
            tuner.step_ended(self._parameters)

    def _start_other(self, group: int) -> None:
        members = [self._parameters[each] for each in self._members[group]]
        if self._codec_runs is not None:
            names = [self._names[each] for each in members]
            gradients = [_dense(each.grad) for each in members]
            self._codec_runs.start(group, self._name_of(self._members[group]), names, gradients, partial(_put, members))
            return
        compressed = [self._compression.compress(_dense(each.grad)) for each in members]
        tensors = [tensor for tensor, _ in compressed]
        handle = mpi_ops.grouped_allreduce_async_(tensors, name=self._name_of(self._members[group]), **self._reduction)

        def finish() -> None:
            mpi_ops.synchronize(handle)
            for each, (tensor, ctx) in zip(members, compressed, strict=True):
                _assign(each, self._compression.decompress(tensor, ctx))

        self._others.append(finish)


def _put(members: list[torch.Tensor], reduced: list[torch.Tensor]) -> None:
    for each, tensor in zip(members, reduced, strict=True):
        _assign(each, tensor)


def _dense(gradient: Any) -> torch.Tensor:
    dense: torch.Tensor = gradient.to_dense() if gradient.is_sparse else gradient
    return dense if dense.is_contiguous() else dense.contiguous()


def _assign(parameter: Any, reduced: torch.Tensor) -> None:
    gradient = parameter.grad
    if gradient.is_sparse:
        parameter.grad = reduced.to_sparse(gradient.sparse_dim())
    elif reduced.data_ptr() != gradient.data_ptr():
        gradient.copy_(reduced)
