# SPDX-License-Identifier: Apache-2.0
"""Behaviour common to candidates behind the C++ autograd node: random numbers, counters, outputs that alias inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.python.frontend.differential import Script, compare, state

pytestmark = pytest.mark.smoke

CANDIDATES = ["aot", "native"]
Forward = Callable[[Any, torch.Tensor], Any]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


class Body(nn.Module):
    """A layer and a counter, with any forward over them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(8))
        self._forward = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self._forward(self, x)


def script_of(forward: Forward, loss_of: Loss, *, needs_grad: bool = True) -> Script:
    """Runs four steps on seeded batches. `loss_of(outputs, batch)` may use everything."""

    def script(wrap: Callable[[Any], Any]) -> list[Any]:
        model = wrap(Body(forward))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for step in range(4):
            batch = torch.randn(5, 8, generator=torch.Generator().manual_seed(step)).requires_grad_(needs_grad)
            optimizer.zero_grad()
            loss = loss_of(model(batch), batch)
            loss.backward()
            optimizer.step()
            seen += [loss.detach(), batch.grad]
        return [*seen, *state(model)]

    return script


def squares(outputs: Any, _batch: torch.Tensor) -> torch.Tensor:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum(out.square().mean() for out in outputs if out.requires_grad)  # type: ignore[return-value]


def dropped(model: Any, x: torch.Tensor) -> Any:
    hidden = F.dropout(torch.relu(model.layer(x)), 0.5)
    noise = torch.rand_like(hidden)
    return F.dropout(hidden + noise, 0.25), noise.detach()


def penalty(outputs: Any, batch: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(outputs[0].square().sum(), batch, create_graph=True)
    return gradient.square().mean()


def counted(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.calls += 1
    return model.layer(x) / model.calls


def averaged(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The backward needs the average's value from before it changed."""
    scaled = model.layer(x) * model.average.add(1.0)
    model.average.lerp_(x.detach().mean(0), 0.5)
    return scaled


def is_input(outputs: Any, batch: torch.Tensor) -> torch.Tensor:
    out, same = outputs
    assert same is batch
    return out.square().mean() + same.sin().sum()


def views_input(outputs: Any, batch: torch.Tensor) -> torch.Tensor:
    out, view = outputs
    assert view.untyped_storage().data_ptr() == batch.untyped_storage().data_ptr()
    assert view.storage_offset() == 8 and view.shape == (8, 3)
    return out.square().mean() + (view.sin() * torch.arange(3.0)).sum()


def parameter_views(outputs: Any, _batch: torch.Tensor) -> torch.Tensor:
    out, parameter, view = outputs
    assert isinstance(parameter, nn.Parameter)
    return out.square().mean() + parameter.square().mean() + (view.cos() * torch.arange(8.0)).mean()


CASES = {
    "dropout and noise": script_of(dropped, squares),
    "double backward through dropout": script_of(dropped, penalty),
    "a counter": script_of(counted, squares),
    "a saved buffer that changes": script_of(averaged, squares),
    "an output is the input": script_of(lambda m, x: (m.layer(x), x), is_input),
    "an output views the input": script_of(lambda m, x: (m.layer(x), x[1:4].t()), views_input),
    "outputs come from a parameter": script_of(
        lambda m, x: (m.layer(x), m.layer.weight, m.layer.weight.t()), parameter_views
    ),
    "a view without gradients": script_of(lambda m, x: (m.layer(x), x[2]), squares, needs_grad=False),
}


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("name", CASES)
def test_trains_as_eager(name: str, candidate: str) -> None:
    outcome = compare(CASES[name], candidate=candidate, tolerance=1e-6)
    assert outcome.ran(candidate), outcome.reasons()


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_masks_are_eagers_bit_for_bit(candidate: str) -> None:
    def script(wrap: Callable[[Any], Any]) -> list[Any]:
        model = wrap(Body(lambda m, x: F.dropout(m.layer(x).detach().sign() * m.layer.bias.abs().add(1.0), 0.5)))
        masks = []
        for _ in range(4):
            out = model(torch.ones(16, 8))
            out.sum().backward()
            masks += [out.detach() == 0, torch.rand(2)]
        return masks

    outcome = compare(script, candidate=candidate)
    assert outcome.ran(candidate), outcome.reasons()
