# SPDX-License-Identifier: Apache-2.0
"""Knows which optimizers have a fused step in torch, and at which steps it does the same as the plain step.

torch's fused kernels for the CPU read memory from its beginning to its end, without regard to strides. They compute
wrong numbers if a gradient is laid out in another way than its parameter, and they raise errors in cases that the plain
step handles, such as sparse gradients. So `Fitness` looks at all gradients before each fused step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from agspeed import native
from agspeed.config import Settings
from agspeed.tuning.company import num_ranks

if TYPE_CHECKING:
    from agspeed._native import StepRecord

FUSIBLE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
"""The optimizers of torch with the option ``fused``. The others have no such kernel, in any release that agspeed
supports."""

Kind = tuple[Any, ...]
"""The element type of a parameter and the options of its group, as far as they choose code of the fused kernel."""


def why_never(optimizer: torch.optim.Optimizer, settings: Settings) -> str | None:
    """Returns why an optimizer keeps its own step, whatever its gradients are; None if it may be fused."""
    name = type(optimizer).__name__
    if type(optimizer) not in FUSIBLE:
        is_derived = isinstance(optimizer, FUSIBLE)
        return f"this {name} has a step of its own" if is_derived else f"torch has no fused step for {name}"
    if any(group.get("fused") for group in optimizer.param_groups):
        return "its step is fused already"
    if any(group.get("differentiable") or group.get("capturable") for group in optimizer.param_groups):
        return "differentiable and capturable optimizers keep their own step"
    if settings.numerics == "exact":
        return 'numerics="exact" keeps the plain step: the fused one rounds differently'
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(not p.is_floating_point() or p.layout is not torch.strided for p in parameters):
        return "a parameter is not a dense floating-point tensor"
    return why_plain()


def why_plain() -> str | None:
    """Returns why the plain step must run in this process at present, or None. Takes a microsecond."""
    if (ranks := num_ranks()) == 1:
        return None
    return (
        f"{ranks} ranks train: the fused step rounds differently, and each would run it at steps of its own; make the "
        "optimizer with fused=True at every rank to fuse it"
    )


def trained(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    """Yields the parameters that have gradients, each with its group."""
    return ((group, p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None)


def kind_of(group: dict[str, Any], parameter: torch.Tensor) -> Kind:
    """Returns the kind of a parameter. Numbers count only as zero or not zero."""
    return parameter.dtype, *_options(group)


def _options(group: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((key, _branch(value)) for key, value in group.items() if key not in _NO_OPTIONS)


def kinds_of(optimizer: torch.optim.Optimizer) -> set[Kind]:
    """Returns the kinds of all parameters that have gradients."""
    return {kind_of(group, p) for group, p in trained(optimizer)}


def _branch(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_branch, value))
    return (type(value), bool(value != 0)) if isinstance(value, (int, float, torch.Tensor)) else value


_NO_OPTIONS = ("params", "param_names", "fused", "foreach", "lr", "initial_lr")


UNPROVEN = "it has parameters or options that were not compared with the plain step"


class Fitness:
    """Decides for one optimizer, before each step, whether the fused step may run. One thread.

    Most steps have the same layouts of gradients and the same options as the step before. Then the check only compares
    them, in native code.
    """

    def __init__(self) -> None:
        self.proven: set[Kind] = set()
        """Kinds that the gate has accepted."""
        self._record: StepRecord | None = None
        self._num_momenta = 0
        self._state: object = None

    def why_not_now(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Returns why the plain step must run with the present gradients, or None. Requires: the optimizer is one of
        `FUSIBLE`, and the native module is loaded."""
        num_momenta = _num_momenta(optimizer)
        if self._record is None:
            module = native.load()
            assert module is not None
            self._record = module.StepRecord()
        is_same_state = num_momenta == self._num_momenta and optimizer.state is self._state
        if is_same_state and self._record.fits(optimizer.param_groups):
            return None
        self.forget()
        for group in optimizer.param_groups:
            if group.get("fused", True) or group.get("differentiable") or group.get("capturable"):
                return "an option of its groups was changed"
        if (reason := why_unfit(optimizer)) is not None:
            return reason
        if not kinds_of(optimizer) <= self.proven:
            return UNPROVEN
        self._record.set(optimizer.param_groups)
        self._num_momenta, self._state = num_momenta, optimizer.state
        return None

    def forget(self) -> None:
        """Makes the next step look at everything again."""
        if self._record is not None:
            self._record.forget()
        self._state = None


def why_unfit(optimizer: torch.optim.Optimizer) -> str | None:
    """Returns why the fused step differs from the plain one with the present gradients and state, or None."""
    seen: set[int] = set()
    for _, p in trained(optimizer):
        if id(p) in seen:
            return "it holds a parameter twice"
        seen.add(id(p))
        if (reason := _why_unlike(p, optimizer.state.get(p, {}))) is not None:
            return reason
    return "a parameter gets its first momentum" if _num_momenta(optimizer) not in (0, len(seen)) else None


def _num_momenta(optimizer: torch.optim.Optimizer) -> int:
    """Returns how many of SGD's parameters with gradients have a momentum; 0 for other optimizers."""
    if not isinstance(optimizer, torch.optim.SGD) or not optimizer.state:
        return 0
    states = (optimizer.state.get(p) for _, p in trained(optimizer))
    return sum(state is not None and state.get("momentum_buffer") is not None for state in states)


def _why_unlike(parameter: torch.Tensor, state: dict[str, Any]) -> str | None:
    """Returns why a parameter, its gradient and its state do not fit the fused kernel together, or None."""
    gradient = parameter.grad
    assert gradient is not None
    if type(parameter) not in _PLAIN_TYPES or type(gradient) not in _PLAIN_TYPES:
        return "a parameter or gradient is of a subclass of Tensor"
    if not parameter.is_cpu or not parameter.is_floating_point():
        return "a parameter is not a floating-point tensor on the CPU"
    if gradient.layout is not torch.strided:
        return _SPARSE
    if not state and torch.get_default_dtype() == torch.float64:
        return "the fused step would count steps in float32, not in torch's default type"
    values = [value for key, value in state.items() if key != "step" and isinstance(value, torch.Tensor)]
    if any(value.dtype != parameter.dtype or value.shape != parameter.shape for value in (gradient, *values)):
        return "a gradient or a part of the state has another type or shape than its parameter"
    order = _order(parameter)
    if order is None or any(_order(value) != order for value in (gradient, *values)):
        return "a gradient or a part of the state is laid out in another way than its parameter"
    return None


def _order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the strides of a tensor, except where the size is 1; None if its memory has gaps or overlaps."""
    if tensor.numel() == 0:
        return ()
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return None
        expected *= size
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1)


_SPARSE = "a gradient is sparse"
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
