# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: the user's optimizer, whose gradients are reduced over all ranks while the backward runs.

The returned optimizer belongs to a subclass of the user's optimizer class, with the same name. Schedulers and type
checks therefore keep working. It shares groups and state with the user's optimizer (wrapped.py).
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from agspeed.horovod import environment
from agspeed.horovod.torch import job
from agspeed.horovod.torch.adasum import AdasumSteps
from agspeed.horovod.torch.arguments import Adasum, Average, Sum, name_of
from agspeed.horovod.torch.compression import Compression, TopKCompressor, codec_of
from agspeed.horovod.torch.exchange import Exchange
from agspeed.horovod.torch.process_sets import ProcessSet, global_process_set
from agspeed.horovod.torch.wrapped import ParameterNames, Wrapped, wrap
from agspeed.log import warn_once
from agspeed.transfer.optimizer_state import parameters_of

__all__ = ["DistributedOptimizer"]

_CLEARED_TOO_EARLY = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)


class _Distributed(Wrapped):
    """The class in front of the user's class that reduces gradients."""

    _exchange: Exchange

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. step() calls it by default."""
        self._exchange.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() does not synchronize.

        It is for scripts that call synchronize() themselves, e.g. to clip gradients before the step.
        """
        self._exchange.should_synchronize = False
        try:
            yield
        finally:
            self._exchange.should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backwards whose gradients are summed up before they are reduced."""
        self._exchange.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces all gradients that are not reduced yet, and takes the optimizer's step.

        closure: its gradients are reduced each time the optimizer calls it. It returns this rank's own loss.
        """
        exchange = self._exchange
        if exchange.should_synchronize and (closure is None or exchange.is_under_way()):
            if exchange.is_synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            exchange.synchronize()
        exchange.is_synchronized = False
        if closure is None:
            return super().step()
        loss = super().step(exchange.reducing(closure))
        exchange.is_synchronized = False
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group. Gradients of its parameters are reduced from the next backward on.

        Raises: UserError while gradients are being reduced.
        """
        self._exchange.check_may_change()
        super().add_param_group(param_group)

    def zero_grad(self, *arguments: Any, **keywords: Any) -> None:
        """Clears the gradients. Raises: AssertionError while gradients are being reduced."""
        if self._exchange.is_under_way():
            raise AssertionError(_CLEARED_TOO_EARLY)
        super().zero_grad(*arguments, **keywords)


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wraps an optimizer so that step() uses gradients that are reduced over all ranks.

    Args:
        named_parameters: (name, parameter) of all its parameters.
        compression: a compressor or a codec for gradients while they travel. It must be equal at all ranks. If the
            variable LIGHT_TOPK_ALLREDUCE is 1, the default is top-k with the options of LIGHT_TOPK_*.
        backward_passes_per_step: the number of backwards whose gradients are summed up before they are reduced.
        gradient_predivide_factor: splits the division of an average into one before and one after the sum.
        groups: the number of groups into which gradients are fused, or a list of parameters for each group.
        sparse_as_dense: makes sparse gradients dense before they are reduced.

    Raises: ValueError for arguments that make no sense, duplicate names, and parameters without a name.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if op != Adasum:
        name_of(op)
    if compression is Compression.none and op in (Average, Sum) and gradient_predivide_factor == 1.0:
        compression = _asked_by_variables() or compression
    if (codec := codec_of(compression)) is not None:
        if op not in (Average, Sum) or gradient_predivide_factor != 1.0:
            raise ValueError(
                f"compression={codec.describe()} averages gradients itself: use op=hvd.Average or op=hvd.Sum, and no "
                "gradient_predivide_factor."
            )
        compression = codec
    names = ParameterNames(_names_of(optimizer, named_parameters))
    reduction = {"op": op, "process_set": process_set}
    if gradient_predivide_factor != 1.0:
        reduction |= {
            "prescale_factor": 1.0 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor,
        }
    made = wrap(optimizer, AdasumSteps if op == Adasum else _Distributed, names)
    if op == Adasum:
        if process_set.process_set_id != global_process_set.process_set_id:
            raise ValueError("op=hvd.Adasum reduces over all ranks only: leave process_set out.")
        made._adasum_compression = compression
        return made
    made._exchange = Exchange(
        made,
        names,
        _groups_of(groups, parameters_of(optimizer)),
        compression,
        reduction,
        (backward_passes_per_step, sparse_as_dense),
    )
    return made


def _asked_by_variables() -> TopKCompressor | None:
    """Returns the codec that LIGHT_TOPK_ALLREDUCE switches on for optimizers without a compression."""
    if (asked := environment.top_k()) is None:
        return None
    codec = TopKCompressor(density=asked.density, dense_below=asked.dense_below)
    sentence = f"LIGHT_TOPK_ALLREDUCE is set, so gradients are sent by {codec.describe()}, which changes them."
    if job.current().where.rank == 0:
        warn_once(sentence, sentence)
    return codec


def _names_of(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    named = list(named_parameters) if named_parameters is not None else None
    if not named:
        return {
            parameter: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(optimizer.param_groups)
            for j, parameter in enumerate(group["params"])
        }
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    found = [name for name, _ in named]
    doubled = sorted({name for name in found if found.count(name) > 1})
    if doubled:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(doubled)}")
    names = {parameter: name for name, parameter in named}
    unnamed = sum(each not in names for group in optimizer.param_groups for each in group["params"])
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. Python object ids: "
            + ", ".join(
                str(id(each)) for group in optimizer.param_groups for each in group["params"] if each not in names
            )
        )
    return names


def _groups_of(groups: Any, parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    if groups is None:
        return []
    wanted = [each for each in parameters if each.requires_grad]
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError("groups should be a positive integer or a list of lists of parameters.")
        count = min(groups, len(wanted))
        bounds = [len(wanted) * at // count for at in range(count + 1)] if count else []
        return [list(wanted[begin:end]) for begin, end in itertools.pairwise(bounds)]
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError("groups should be a positive integer or a list of lists of parameters.")
    known, seen = set(wanted), set()
    for group in groups:
        for each in group:
            if each in seen:
                raise ValueError("A parameter can only appear once in groups.")
            seen.add(each)
    return [[each for each in group if each in known] for group in groups if any(each in known for each in group)]
