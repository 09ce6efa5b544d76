# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: the user's optimizer, whose gradients are reduced over all ranks while the backward runs.

The result is of a subclass of the optimizer's own class, with the same name: schedulers and checks by type go on
working. It shares groups and state with the optimizer that was wrapped.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from agspeed.horovod.torch import job, mpi_ops
from agspeed.horovod.torch.adasum import AdasumSteps
from agspeed.horovod.torch.arguments import Adasum, Average, name_of
from agspeed.horovod.torch.compression import Compression
from agspeed.horovod.torch.process_sets import ProcessSet, global_process_set

__all__ = ["DistributedOptimizer"]

_TOO_MANY_BACKWARDS = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
    "backward_passes_per_step to accumulate gradients locally."
)
_CLEARED_TOO_EARLY = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object


class _Distributed(_Base):
    """What is put before the user's class."""

    _exchange: _Exchange

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; step() does it by itself."""
        self._exchange.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it step() does not synchronize: for scripts that did, to clip gradients for instance."""
        self._exchange.should_synchronize = False
        try:
            yield
        finally:
            self._exchange.should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients are summed over so many backwards before they are reduced."""
        self._exchange.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces what is not reduced yet, and takes the optimizer's step."""
        exchange = self._exchange
        if exchange.should_synchronize:
            if exchange.is_synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            exchange.synchronize()
        exchange.is_synchronized = False
        return super().step(closure) if closure is not None else super().step()

    def zero_grad(self, *arguments: Any, **keywords: Any) -> None:
        """Raises: AssertionError while gradients are being reduced."""
        if self._exchange.is_under_way():
            raise AssertionError(_CLEARED_TOO_EARLY)
        super().zero_grad(*arguments, **keywords)


class _Exchange:
    """The gradients of one optimizer on their way through the ranks."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[torch.Tensor, str],
        groups: list[list[torch.Tensor]],
        compression: Any,
        reduction: dict[str, Any],
        options: tuple[int, bool],
    ) -> None:
        self._optimizer, self._names, self._compression, self._reduction = optimizer, names, compression, reduction
        self._passes, self._sparse_as_dense = options
        self._group_of = {parameter: tuple(group) for group in groups for parameter in group}
        self._left: dict[torch.Tensor, int] = {}
        self._handles: dict[Any, Callable[[], None]] = {}  # by parameter, or by the tuple of those of a group
        self.is_synchronized, self.should_synchronize = False, True
        process_set: ProcessSet = reduction["process_set"]
        current = job.current()
        self._is_active = process_set.included() and (process_set.size() > 1 or current.options.is_elastic)
        if self._is_active:
            for parameter in self._parameters():
                self._left[parameter] = self._passes
                as_any: Any = parameter  # torch leaves the function untyped
                as_any.register_post_accumulate_grad_hook(self._accumulated)

    def set_passes(self, passes: int) -> None:
        self._passes = passes
        for parameter in self._left:
            self._left[parameter] = passes

    def is_under_way(self) -> bool:
        return bool(self._handles)

    def synchronize(self) -> None:
        """All ranks reduce all gradients: those this rank has not computed are zeros."""
        if not self._is_active:
            self.is_synchronized = True
            return
        for parameter in self._parameters():
            if self._key(parameter) not in self._handles:
                self._start(parameter)
        try:
            for finish in self._handles.values():
                finish()
        finally:
            self._handles.clear()
            for parameter in self._left:
                self._left[parameter] = self._passes
        self.is_synchronized = True

    def _parameters(self) -> Iterator[torch.Tensor]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    yield parameter

    def _key(self, parameter: torch.Tensor) -> Any:
        return self._group_of.get(parameter, parameter)

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Torch calls it when a backward has added to the parameter's gradient."""
        if self._left[parameter] <= 0 or self._key(parameter) in self._handles:
            raise AssertionError(_TOO_MANY_BACKWARDS)
        self._left[parameter] -= 1
        if self._left[parameter] > 0:
            return
        group = self._group_of.get(parameter)
        if group is None or all(self._left[each] == 0 for each in group):
            self._start(parameter)

    def _start(self, parameter: torch.Tensor) -> None:
        group = self._group_of.get(parameter)
        members = list(group) if group is not None else [parameter]
        gradients = []
        for each in members:
            if each.grad is None:
                each.grad = torch.zeros_like(each)
            gradients.append(each.grad)
        if group is None and gradients[0].is_sparse and not self._sparse_as_dense:
            self._handles[parameter] = self._start_sparse(parameter)
            return
        compressed = [self._compression.compress(_dense(gradient)) for gradient in gradients]
        tensors = [tensor for tensor, _ in compressed]
        if group is None:
            handle = mpi_ops.allreduce_async_(tensors[0], name=self._names[parameter], **self._reduction)
        else:
            name = f"group.{self._names[members[0]]}.{len(members)}"
            handle = mpi_ops.grouped_allreduce_async_(tensors, name=name, **self._reduction)

        def finish() -> None:
            mpi_ops.synchronize(handle)
            for each, (tensor, ctx) in zip(members, compressed, strict=True):
                _assign(each, self._compression.decompress(tensor, ctx))

        self._handles[self._key(parameter)] = finish

    def _start_sparse(self, parameter: Any) -> Callable[[], None]:
        wait = mpi_ops.sparse_allreduce_async(
            parameter.grad, self._names[parameter], self._reduction["op"], self._reduction["process_set"]
        )

        def finish() -> None:
            parameter.grad = wait()

        return finish


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense if dense.is_contiguous() else dense.contiguous()


def _assign(parameter: Any, reduced: torch.Tensor) -> None:
    gradient = parameter.grad
    if gradient.is_sparse:
        parameter.grad = reduced.to_sparse(gradient.sparse_dim())
    elif reduced.data_ptr() != gradient.data_ptr():
        gradient.copy_(reduced)


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
    """The optimizer, whose step() uses gradients reduced over all ranks.

    named_parameters: (name, parameter) of all its parameters. compression: of gradients while they travel.
    backward_passes_per_step: gradients of so many backwards are summed up first. gradient_predivide_factor: splits the
    division of an average into one before and one after the sum. groups: how many groups of gradients are reduced
    together, or lists of parameters. sparse_as_dense: sparse gradients are made dense to be reduced.

    Raises: ValueError for arguments that make no sense, or a name that is not the optimizer's.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if op != Adasum:
        name_of(op)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    names = _names_of(optimizer, named_parameters)
    reduction = {"op": op, "process_set": process_set}
    if gradient_predivide_factor != 1.0:
        reduction |= {
            "prescale_factor": 1.0 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor,
        }
    before: type = AdasumSteps if op == Adasum else _Distributed
    made_class: Any = type(type(optimizer).__name__, (before, type(optimizer)), {})
    made = made_class.__new__(made_class)
    # Schedulers that were made before have put their own step() there, which is not ours.
    made.__dict__.update({name: value for name, value in vars(optimizer).items() if name not in ("step", "zero_grad")})
    if op == Adasum:
        if process_set.process_set_id != global_process_set.process_set_id:
            raise ValueError("op=hvd.Adasum reduces over all ranks only: leave process_set out.")
        made._adasum_names, made._adasum_compression = names, compression
        return made
    made._exchange = _Exchange(
        made,
        names,
        _groups_of(groups, parameters),
        compression,
        reduction,
        (backward_passes_per_step, sparse_as_dense),
    )
    return made


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
