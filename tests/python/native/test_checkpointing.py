# SPDX-License-Identifier: Apache-2.0
"""Checkpointed parts that draw random numbers, compiled natively: the backward draws the forward's numbers again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from agspeed.backends import CompileOptions, candidate

Body = Callable[[Tensor], Tensor]


def _dropout(x: Tensor) -> Tensor:
    return functional.dropout(torch.tanh(x), 0.3) * x.sigmoid()


def _attention(x: Tensor) -> Tensor:
    heads = x.view(x.shape[0], 4, -1, 8)
    return functional.scaled_dot_product_attention(heads, heads, heads).reshape(x.shape)


def _attention_with_dropout(x: Tensor) -> Tensor:
    heads = x.view(x.shape[0], 4, -1, 8)
    return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2).reshape(x.shape)


def _noise(x: Tensor) -> Tensor:
    return torch.cos(x + torch.rand_like(x)) * x.exp()


class Checkpointed(nn.Module):
    """Two checkpointed parts, and between them a dropout that is not checkpointed."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(lambda x: self.body(self.first(x)), x, use_reentrant=False)
        x = functional.dropout(x, 0.1)
        return checkpoint(lambda x: self.body(self.last(x)), x, use_reentrant=False)  # type: ignore[no-any-return]


def _steps(model: nn.Module, run: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Returns outputs and gradients of two steps, and numbers drawn after each, from one seed."""
    torch.manual_seed(5)
    results = []
    for _ in range(2):
        x = torch.randn(6, 64, requires_grad=True)
        y = run(x)
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
        assert x.grad is not None
        results += [y.detach(), x.grad, torch.rand(3)]
    return [*results, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("body", [_dropout, _attention, _attention_with_dropout, _noise])
def test_the_backward_draws_what_the_forward_drew(body: Body) -> None:
    if reason := candidate("native").unavailable():
        pytest.skip(f"the native backend cannot run: {reason}")
    runners: list[Any] = []

    def native(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        runners.append(candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads())))
        return runners[-1]

    torch._dynamo.reset()
    torch.manual_seed(1)
    model = Checkpointed(body)
    wanted = _steps(model, model)
    model.zero_grad()
    got = _steps(model, torch.compile(model, backend=native, fullgraph=True))
    assert len(runners) == 1
    torch.testing.assert_close(got, wanted, msg=lambda text: f"{body.__name__}: {text}")
