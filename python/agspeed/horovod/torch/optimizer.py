# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: the user's optimizer, whose gradients are reduced over all ranks while the backward runs.

The result is of a subclass of the optimizer's own class, with the same name: schedulers and checks by type go on
working. It shares groups and state with the optimizer that was wrapped.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from agspeed import native
from agspeed.horovod.exceptions import HorovodInternalError
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
    """The gradients of one optimizer on their way through the ranks.

    Hooks and operations are C++ (``comm/horovod/gradient_exchange.h``), but for what only Python can do: sparse
    gradients, and compressors of the user's.
    """

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
        self._wanted_groups = groups
        self._others: list[Callable[[], None]] = []
        self.is_synchronized, self.should_synchronize = False, True
        process_set: ProcessSet = reduction["process_set"]
        current = job.current()
        self._is_active = process_set.included() and (process_set.size() > 1 or current.options.is_elastic)
        self._native: Any = None
        self._num_parameters = 0
        if self._is_active:
            self._make()
            job.followers.add(self)

    def job_began(self) -> None:
        """After the end of the job in which it was made: gradients go through the new one."""
        self._native, self._num_parameters, self._others = None, 0, []
        if self._reduction["process_set"].process_set_id is not None:
            self._make()

    def _make(self) -> None:
        """The exchange of all parameters that the optimizer has by now."""
        parameters = []
        for i, group in enumerate(self._optimizer.param_groups):
            for j, parameter in enumerate(group["params"]):
                self._names.setdefault(parameter, f"allreduce.noname.{i}.{j}")
                parameters.append(parameter)
        self._num_parameters = len(parameters)
        numbers = {parameter: at for at, parameter in enumerate(parameters)}
        together = [[numbers[each] for each in group] for group in self._wanted_groups]
        in_group = {number for group in together for number in group}
        alone = [[number] for number in range(len(parameters)) if number not in in_group]
        self._members = sorted([*together, *alone], key=min)
        self._parameters = parameters
        own = weakref.ref(self)

        def refuse(_parameter: int) -> None:
            raise AssertionError(_TOO_MANY_BACKWARDS)

        def start(group: int) -> None:
            if (exchange := own()) is not None:
                exchange._start_other(group)

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
            passes=self._passes,
            refuse=refuse,
            start=start,
        )

    def _name_of(self, members: list[int]) -> str:
        first = self._names[self._parameters[members[0]]]
        return first if len(members) == 1 else f"group.{first}.{len(members)}"

    def set_passes(self, passes: int) -> None:
        self._passes = passes
        if self._native is not None:
            self._native.set_passes(passes)

    def is_under_way(self) -> bool:
        return self._native is not None and self._native.is_under_way()

    def synchronize(self) -> None:
        """All ranks reduce all gradients: those this rank has not computed are zeros."""
        if not self._is_active:
            self.is_synchronized = True
            return
        if sum(len(group["params"]) for group in self._optimizer.param_groups) != self._num_parameters:
            self._make()
        others = self._others
        try:
            self._native.start_missing()
            for finish in others:
                finish()
        finally:
            self._others = []
            try:
                self._native.wait()
            except (RuntimeError, ValueError) as error:
                raise HorovodInternalError(str(error)) from None
        self.is_synchronized = True
        if (tuner := job.current().tuner) is not None:
            tuner.step_ended(self._parameters)

    def _start_other(self, group: int) -> None:
        members = [self._parameters[each] for each in self._members[group]]
        if len(members) == 1 and members[0].grad.is_sparse and not self._sparse_as_dense:
            self._others.append(self._start_sparse(members[0]))
            return
        compressed = [self._compression.compress(_dense(each.grad)) for each in members]
        tensors = [tensor for tensor, _ in compressed]
        handle = mpi_ops.grouped_allreduce_async_(tensors, name=self._name_of(self._members[group]), **self._reduction)

        def finish() -> None:
            mpi_ops.synchronize(handle)
            for each, (tensor, ctx) in zip(members, compressed, strict=True):
                _assign(each, self._compression.decompress(tensor, ctx))

        self._others.append(finish)

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
