# SPDX-License-Identifier: Apache-2.0
"""Training workloads: a workload is a frozen recipe that builds independent training sessions.

A `Workload` is data. Its `build` makes a `Training`: modules that a candidate may compile in place, a closure that runs
one whole training step on a batch, and a fixed list of real batches. Building twice gives bit-identical weights and
data, so two candidates start from the same state. Not thread-safe: building seeds torch's global generator.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Any, ...]
Memory = Literal["torch", "chosen", "retained"]
"""A CPU allocator: torch's own, the one that agspeed's session has chosen, or the one that keeps freed memory."""


@dataclass(frozen=True)
class Training:
    """One training session. `step` does zero_grad, forward, loss, backward and update, and returns the detached loss.

    `period` is the number of consecutive batches that make up one unit of equal work. It is above 1 only if batches
    differ in shape. Timing blocks are whole periods. `memory`: the allocator of the timed steps.
    """

    modules: dict[str, nn.Module]
    step: Callable[[Batch], Tensor]
    batches: Sequence[Batch]
    period: int = 1
    optimizers: Sequence[Optimizer] = ()
    memory: Memory = "torch"

    @torch.no_grad()
    def go_on_from(self, other: "Training") -> None:
        """Takes over weights, buffers and optimizer states of another session of the same workload.

        Optimizers keep the form of their step, such as `fused`.
        """
        for name, module in self.modules.items():
            theirs = other.modules[name]
            for own, value in zip(_tensors(module), _tensors(theirs), strict=True):
                own.copy_(value)
        for optimizer, origin in zip(self.optimizers, other.optimizers, strict=True):
            groups = optimizer.param_groups
            forms = [{name: group[name] for name in ("foreach", "fused") if name in group} for group in groups]
            optimizer.load_state_dict(copy.deepcopy(origin.state_dict()))  # it would share tensors
            for group, form in zip(optimizer.param_groups, forms, strict=True):
                group.update(form)


@dataclass(frozen=True)
class Workload:
    """A named recipe. After `learn_steps` steps on its own data the loss has fallen visibly."""

    name: str
    stresses: str
    seed: int
    make: Callable[[], Training]
    learn_steps: int = 30

    def build(self) -> Training:
        torch.manual_seed(self.seed)
        return self.make()


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


_wrap: Callable[[nn.Module], nn.Module] | None = None


@contextmanager
def called_through(wrap: Callable[[nn.Module], nn.Module]) -> Iterator[None]:
    """Models of `supervised` trainings that are made inside the block are called through `wrap(model)`, such as DDP."""
    global _wrap
    before, _wrap = _wrap, wrap
    try:
        yield
    finally:
        _wrap = before


def supervised(
    model: nn.Module,
    optimizer: Optimizer,
    loss_of: Callable[[nn.Module, Batch], Tensor],
    batches: Sequence[Batch],
    period: int = 1,
) -> Training:
    """The usual loop around one model: `loss_of(model, batch)` runs the forward and returns a scalar loss."""
    called = _wrap(model) if _wrap is not None else model

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(called, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training({"model": model}, step, batches, period, [optimizer])


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Classification loss outside the model, for (input, label) batches; sequences are flattened."""
    inputs, labels = batch
    logits = model(inputs)
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def mean_squared(model: nn.Module, batch: Batch) -> Tensor:
    """Regression loss outside the model, for (input, target) batches."""
    inputs, target = batch
    return nn.functional.mse_loss(model(inputs), target)
