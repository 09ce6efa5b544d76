# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of steps that take a closure.

Closures average the loss over the ranks, because LBFGS decides by the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

import agspeed.horovod.torch as hvd
from tests.python.distributed import training
from tests.python.horovod.programs import job

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=4, history_size=5),
    "LBFGS with a line search": lambda parameters: torch.optim.LBFGS(
        parameters, max_iter=4, line_search_fn="strong_wolfe"
    ),
}


class _TwoGradients(torch.optim.SGD):
    """A step that reads gradients twice: the gradients that exist when it begins, and the gradients of its closure."""

    def step(self, closure: Any = None) -> Any:
        super().step()
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


def _training(by_ddp: bool) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if by_ddp else job()


def _wrap(by_ddp: bool, module: nn.Module, inner: torch.optim.Optimizer, passes: int) -> tuple[Any, Any]:
    if by_ddp:
        return nn.parallel.DistributedDataParallel(module), inner
    return module, hvd.DistributedOptimizer(inner, module.named_parameters(), backward_passes_per_step=passes)


def _backwards(module: Any, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Returns the loss of all inputs, averaged over the ranks."""
    total = torch.zeros(())
    for at, batch in enumerate(inputs):
        is_last = at == len(inputs) - 1
        alone = module.no_sync() if isinstance(module, nn.parallel.DistributedDataParallel) and not is_last else None
        with alone or contextlib.nullcontext():
            loss = module(batch).square().mean()
            loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def _inputs(steps: int, passes: int) -> Iterator[list[torch.Tensor]]:
    batches = training.batches(steps * passes)
    for _ in range(steps):
        yield [next(batches) for _ in range(passes)]


def closures(by_ddp: bool, optimizer: str, passes: int = 1) -> list[torch.Tensor]:
    """Returns weights after five steps whose closures run `passes` backwards each."""
    with _training(by_ddp):
        module = training.model()
        wrapped, made = _wrap(by_ddp, module, OPTIMIZERS[optimizer](module.parameters()), passes)
        for inputs in _inputs(5, passes):

            def closure(inputs: list[torch.Tensor] = inputs) -> torch.Tensor:
                made.zero_grad()
                return _backwards(wrapped, inputs)

            made.step(closure)
        return training.weights(module)


def backwards_before(by_ddp: bool, passes: int) -> list[torch.Tensor]:
    """Runs all backwards but the last outside of the closure, which does not clear gradients."""
    with _training(by_ddp):
        module = training.model()
        wrapped, made = _wrap(by_ddp, module, OPTIMIZERS["SGD"](module.parameters()), passes)
        for inputs in _inputs(5, passes):
            made.zero_grad()
            for batch in inputs[:-1]:
                with wrapped.no_sync() if by_ddp else contextlib.nullcontext():
                    wrapped(batch).square().mean().backward()
            made.step(lambda last=inputs[-1:]: _backwards(wrapped, last))
        return training.weights(module)


def gradients_before_and_within(by_ddp: bool) -> list[torch.Tensor]:
    with _training(by_ddp):
        module = training.model()
        wrapped, made = _wrap(by_ddp, module, _TwoGradients(module.parameters(), lr=0.1), 1)
        for inputs in _inputs(5, 1):
            made.zero_grad()
            _backwards(wrapped, inputs)
            made.step(lambda inputs=inputs: _backwards(wrapped, inputs))
        return training.weights(module)


def clipped_in_the_closure(by_ddp: bool, skips: bool) -> list[torch.Tensor]:
    """The closure synchronizes in order to clip gradients, with or without skip_synchronize() around the step."""
    with _training(by_ddp):
        module = training.model()
        wrapped, made = _wrap(by_ddp, module, OPTIMIZERS["SGD"](module.parameters()), 1)
        for inputs in _inputs(5, 1):

            def closure(inputs: list[torch.Tensor] = inputs) -> torch.Tensor:
                made.zero_grad()
                loss = _backwards(wrapped, inputs)
                if not by_ddp:
                    made.synchronize()
                nn.utils.clip_grad_norm_(module.parameters(), 0.1)
                return loss

            with made.skip_synchronize() if skips and not by_ddp else contextlib.nullcontext():
                made.step(closure)
        return training.weights(module)
