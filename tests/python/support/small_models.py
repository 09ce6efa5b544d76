# SPDX-License-Identifier: Apache-2.0
"""Small models, their inputs, and loops that train them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import agspeed
from tests.python.frontend.differential import as_loss, state

Wrap = Callable[[Any], Any]
Forward = Callable[..., Any]

STEPS = 5
FAST: dict[str, Any] = {"mode": "deterministic", "backends": ["aot"]}


class Linear(nn.Module):
    """One linear layer with a given forward: `body(layer, *args, **kwargs)`."""

    def __init__(self, body: Forward, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.body = body

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self.layer, *args, **kwargs)


def data(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loop(wrap: Wrap, model: nn.Module, loss_of: Callable[[nn.Module, int], torch.Tensor], **kept: Any) -> list[Any]:
    """Trains `model`; `loss_of(model, step)` runs the forward. Returns losses, `kept` values and the final state."""
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *state(model)]


def mlp() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def steps(model: nn.Module, count: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(count):
        optimizer.zero_grad()
        as_loss(model(data(4, 8, seed=step))).backward()
        optimizer.step()


def tuned(model: nn.Module, **keywords: Any) -> nn.Module:
    """Returns an optimized model that has finished tuning and chosen `aot`."""
    model = agspeed.optimize(model, **{**FAST, **keywords})
    steps(model)
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason
    return model
