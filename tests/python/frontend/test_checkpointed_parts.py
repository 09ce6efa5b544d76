# SPDX-License-Identifier: Apache-2.0
"""Models that checkpoint a part: its random numbers are drawn again in the backward and its buffers are updated again,
as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.python.frontend.differential import as_loss, compare, state

Wrap = Callable[[Any], Any]
Make = Callable[[], nn.Module]


class Checkpointed(nn.Module):
    """Two heads over a body: the first through a checkpointed part with the layer that `inner` makes, of width 16."""

    def __init__(self, inner: Make, use_reentrant: bool = False) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(8, 16), inner(), nn.Tanh(), nn.Linear(16, 8))
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x * 2
        part = checkpoint(self.part, x, use_reentrant=self.use_reentrant)
        return self.first(part), self.second(x)


class Stepper:
    """A model under `wrap` with its optimizer and batches."""

    def __init__(self, wrap: Wrap, model: nn.Module) -> None:
        self.model = wrap(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = torch.Generator().manual_seed(3)

    def outputs(self) -> Any:
        self.optimizer.zero_grad()
        return self.model(torch.randn(6, 8, generator=self.data).requires_grad_())

    def seen(self) -> list[Any]:
        return state(self.model)

    def step(self, loss: torch.Tensor) -> list[Any]:
        loss.backward()
        self.optimizer.step()
        return self.seen()


def both_heads(stepper: Stepper) -> list[Any]:
    return [value for _ in range(4) for value in stepper.step(sum(map(as_loss, stepper.outputs())))]


def one_head_in_turn(stepper: Stepper) -> list[Any]:
    """Every other backward does not reach the checkpointed part."""
    return [value for step in range(4) for value in stepper.step(as_loss(stepper.outputs()[step % 2]))]


def losses_given_up(stepper: Stepper) -> list[Any]:
    seen = []
    for step in range(4):
        loss = as_loss(stepper.outputs()[0])
        seen += stepper.seen()
        if step % 2:
            seen += stepper.step(loss)
    return seen


def two_forwards_before_one_backward(stepper: Stepper) -> list[Any]:
    return [
        value for _ in range(4) for value in stepper.step(as_loss(stepper.outputs()[0]) + as_loss(stepper.outputs()[0]))
    ]


def graphs_used_twice(stepper: Stepper) -> list[Any]:
    seen = []
    for _ in range(3):
        loss = as_loss(stepper.outputs()[0])
        loss.backward(retain_graph=True)
        seen += stepper.seen()
        seen += stepper.step(loss)
    return seen


def evaluation_between(stepper: Stepper) -> list[Any]:
    seen = []
    for step in range(6):
        stepper.model.train(step % 3 > 0)
        with torch.set_grad_enabled(step % 3 != 1):
            loss = as_loss(stepper.outputs()[0])
        seen += stepper.step(loss) if loss.requires_grad else stepper.seen()
    return seen


LOOPS = [
    both_heads,
    one_head_in_turn,
    losses_given_up,
    two_forwards_before_one_backward,
    graphs_used_twice,
    evaluation_between,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_statistics_change_when_eager_changes_them(loop: Callable[[Stepper], list[Any]]) -> None:
    def script(wrap: Wrap) -> list[Any]:
        return loop(Stepper(wrap, Checkpointed(lambda: nn.BatchNorm1d(16))))

    outcome = compare(script, tolerance=1e-6)
    assert outcome.ran("aot"), outcome.reasons()


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize(
    "inner",
    [
        lambda: nn.BatchNorm1d(16),
        lambda: nn.BatchNorm1d(16, momentum=0.7, affine=False),
        lambda: nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=0.01)),
        lambda: nn.Sequential(nn.Unflatten(1, (4, 4)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten()),
        lambda: nn.Dropout(0.2),
    ],
    ids=["batch_norm", "large_momentum", "two_batch_norms", "instance_norm", "dropout"],
)
@pytest.mark.parametrize("candidate", ["aot", "native", "graph-eager"])
def test_a_checkpointed_part_trains_as_eager(candidate: str, inner: Make, use_reentrant: bool) -> None:
    def script(wrap: Wrap) -> list[Any]:
        return both_heads(Stepper(wrap, Checkpointed(inner, use_reentrant)))

    outcome = compare(script, tolerance=1e-5, candidate=candidate)
    assert outcome.ran(candidate), outcome.reasons()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.mul_(2).add_(1)
        return x


def _used_twice() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    return nn.Sequential(norm, nn.Linear(16, 16), norm)


@pytest.mark.parametrize("inner", [_used_twice, Counting], ids=["used_twice", "counting"])
def test_other_changes_are_left_to_eager(inner: Make) -> None:
    outcome = compare(lambda wrap: both_heads(Stepper(wrap, Checkpointed(inner))), tolerance=1e-6)
    assert any("in place, which eager does again" in reason for reason in outcome.reasons()), outcome.reasons()


def test_a_momentum_that_is_no_number_trains_as_eager() -> None:
    compare(lambda wrap: both_heads(Stepper(wrap, Checkpointed(lambda: nn.BatchNorm1d(16, momentum=None)))))
