# SPDX-License-Identifier: Apache-2.0
"""TrainingWatch: warns once if the first calls of a target train nothing.

Signs of training are a step of the target's own optimizer, a changed parameter, or a gradient. If there is no sign, one
warning says what is missing. The watch ends then, or at the first sign. It does not change what runs.

Threads: it counts calls of its clock's thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from agspeed.devices.placement import tensors_in
from agspeed.frontend.mistakes import trains_another
from agspeed.frontend.steps import StepClock
from agspeed.frontend.target import FunctionTarget, ModuleTarget, Target, UserCall
from agspeed.log import logger
from agspeed.torch_compat.modules import version_of

_WARNING_CALLS = 20
"""The warning is due after this many calls."""


class TrainingWatch:
    """The watch of one session, from its first call on."""

    def __init__(self, target: Target, clock: StepClock) -> None:
        self.is_over = False
        self._target, self._clock = target, clock
        self._num_calls = 0
        self._versions = 0
        self._has_gradients = False
        self._could_train = False

    def around(self, entry: UserCall) -> UserCall:
        """Returns a function that calls `entry` and watches the calls until the watch is over; `entry` itself if it is
        over already."""
        if self.is_over:
            return entry

        def call(*args: Any, **kwargs: Any) -> object:
            if not torch.compiler.is_compiling() and not self.is_over and self._clock.is_own_thread():
                self._called()
            return entry(*args, **kwargs)

        return call

    def _called(self) -> None:
        """Looks for signs of training at the beginning of a call of the target."""
        initialized = (p for p in _parameters(self._target) if not is_lazy(p))
        parameters = [p for p in initialized if p.is_leaf and not p.is_inference()]
        versions = sum(map(version_of, parameters))
        if self._num_calls == 0:
            self._versions = versions
        self._num_calls += 1
        self._has_gradients = self._has_gradients or any(parameter.grad is not None for parameter in parameters)
        self._could_train = self._could_train or not _obstacles(self._target)
        if versions != self._versions or self._has_trained():
            self.is_over = True
        elif self._num_calls == _WARNING_CALLS:
            self.is_over = True
            self._judge()

    def _has_trained(self) -> bool:
        is_function = isinstance(self._target, FunctionTarget)
        return self._clock.has_own_optimizer or (is_function and self._clock.foreign_optimizer is not None)

    def _judge(self) -> None:
        """Warns. Requires: all calls before the present one have ended and changed no parameter."""
        foreign = self._clock.foreign_optimizer
        if foreign is not None and (self._has_gradients or self._could_train):
            logger.warning("%s", trains_another(f"{foreign} that steps", self._target.name))
        elif not self._has_gradients:
            why, remedy = _why(self._target)
            logger.warning(
                "%s: %d calls and no training step (%s), and agspeed makes training alone faster: %s, or take agspeed "
                'off with mode="off" or agspeed.restore; training that begins later is tuned all the same',
                *(self._target.name, self._num_calls, why, remedy),
            )


def _why(target: Target) -> tuple[str, str]:
    """Returns (why the target does not train, what to do about it)."""
    if isinstance(target, FunctionTarget):
        return (
            "no optimizer has stepped and no parameter has changed",
            "pass the function that computes the loss, calls backward() and steps the optimizer",
        )
    found = _obstacles(target)
    if not found:
        return "no backward() has reached its parameters", "call backward() on a loss of its output"
    return " and ".join(found), " and ".join(found.values())


def _obstacles(target: Target) -> dict[str, str]:
    """Returns {why a module does not train now: what to do about it}."""
    if not isinstance(target, ModuleTarget):
        return {}
    found = {}
    if not target.module.training:
        found["it is in eval mode"] = "call model.train()"
    if not torch.is_grad_enabled():
        found["gradients are off"] = "call it outside torch.no_grad()"
    if not any(parameter.requires_grad for parameter in target.parameters()):
        found["no parameter requires a gradient"] = "set requires_grad of the parameters that train"
    return found


def _parameters(target: Target) -> Iterable[torch.Tensor]:
    return _reached_by(target.eager) if isinstance(target, FunctionTarget) else target.parameters()


def _reached_by(function: UserCall) -> Iterable[torch.Tensor]:
    """Yields the tensors, and the parameters of modules, that a function names or its object holds."""
    try:
        named = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # not a Python function, or a closure variable without a value
        return
    owner = getattr(function, "__self__", None)
    for value in [*named.nonlocals.values(), *named.globals.values(), *getattr(owner, "__dict__", {}).values()]:
        yield from value.parameters() if isinstance(value, nn.Module) else tensors_in(value)
