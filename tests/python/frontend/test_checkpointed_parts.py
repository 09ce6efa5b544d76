# SPDX-License-Identifier: Apache-2.0
"""Models that checkpoint a part: the backward draws its random numbers again and updates its buffers again, as in
eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from agspeed.frontend.dynamo_backend import agspeed_backend
from tests.python.frontend.differential import as_loss, compare, state
from tests.python.support.pairs import pairs

Wrap = Callable[[Any], Any]
Make = Callable[[], nn.Module]


class Checkpointed(nn.Module):
    """Two heads over a body. The first head is a checkpointed part with the layer that `inner` makes, of width 16."""

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
@pytest.mark.parametrize(
    ("candidate", "use_reentrant"), pairs(["aot", "native", "graph-eager"], [True, False], first=1)
)
def test_a_checkpointed_part_trains_as_eager(candidate: str, inner: Make, use_reentrant: bool) -> None:
    def script(wrap: Wrap) -> list[Any]:
        return both_heads(Stepper(wrap, Checkpointed(inner, use_reentrant)))

    outcome = compare(script, tolerance=1e-5, candidate=candidate)
    assert outcome.ran(candidate), outcome.reasons()


def _used_twice() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    return nn.Sequential(norm, nn.Linear(16, 16), norm)


class Changing(nn.Module):
    """Changes its buffer by the function `change`."""

    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.buffer = nn.Buffer(torch.ones(4))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self.buffer)
        return x


def _write(buffer: torch.Tensor) -> None:
    buffer[0] = buffer[0] * 2 + 1


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "average": lambda buffer: buffer.mul_(0.9).add_(1),
    "counter_without_a_norm": lambda buffer: buffer.add_(1),
    "element": _write,
    "view": lambda buffer: buffer.view(-1).add_(1),
    "chunk": lambda buffer: buffer.chunk(2)[0].mul_(2),
    "detached": lambda buffer: buffer.detach().mul_(2),
    "out": lambda buffer: torch.add(buffer, 1, out=buffer),
    "foreach": lambda buffer: torch._foreach_add_([buffer], 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_other_changes_are_left_to_eager(change: Callable[[torch.Tensor], Any]) -> None:
    outcome = compare(lambda wrap: both_heads(Stepper(wrap, Checkpointed(lambda: Changing(change)))), tolerance=1e-6)
    assert any("in place, which eager does again" in reason for reason in outcome.reasons()), outcome.reasons()


class Variant(nn.Module):
    """A checkpointed part and a head, combined by `forward`."""

    def __init__(self, run: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.lower, self.norm, self.upper = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)
        self.run = run

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return self.upper(torch.tanh(self.norm(self.lower(x))))  # type: ignore[no-any-return]

    def checkpointed(self, x: torch.Tensor, **keywords: Any) -> torch.Tensor:
        return checkpoint(self.part, x, use_reentrant=False, **keywords)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.run(self, x))  # type: ignore[no-any-return]


def _without_gradients(model: Variant, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.checkpointed(x)


def _written_into_another(model: Variant, x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(6, 16)
    wide[:, :8] = model.checkpointed(x)
    return wide[:, :8]


def _outside_as_well(model: Variant, x: torch.Tensor) -> torch.Tensor:
    return model.upper(model.norm(model.lower(model.checkpointed(x))))  # type: ignore[no-any-return]


def _read_as_well(model: Variant, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: model.part(x) * model.norm.running_var.mean().clone(), x, use_reentrant=False)  # type: ignore[no-any-return, union-attr]


VARIANTS = [
    _without_gradients,
    _written_into_another,
    _outside_as_well,
    _read_as_well,
    lambda model, x: model.checkpointed(x).detach(),
    lambda model, x: x * (model.checkpointed(x) > 0),
    lambda model, x: x + model.checkpointed(x).add_(model.checkpointed(x)),
]


@pytest.mark.parametrize("run", VARIANTS, ids=[*[run.__name__ for run in VARIANTS[:4]], "detached", "mask", "twice"])
@pytest.mark.parametrize("is_frozen", [False, True], ids=["trained", "frozen"])
def test_parts_that_may_not_run_again_train_as_eager(run: Any, is_frozen: bool) -> None:
    def script(wrap: Wrap) -> list[Any]:
        model = Variant(run)
        for layer in (model.lower, model.norm, model.upper):
            layer.requires_grad_(not is_frozen)
        optimized = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for seed in range(3):
            optimizer.zero_grad()
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
            as_loss(optimized(x)).backward()
            optimizer.step()
            seen += state(model)
        return seen

    compare(script, tolerance=1e-5)


def test_a_gradient_of_gradients_sees_the_same_draws() -> None:
    def script(wrap: Wrap) -> list[Any]:
        stepper = Stepper(wrap, Variant(lambda model, x: model.checkpointed(x)))
        stepper.model.norm = nn.Dropout(0.3)
        seen = []
        for _ in range(3):
            x = torch.randn(6, 8, generator=stepper.data).requires_grad_()
            output = stepper.model(x)
            (gradient,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
            seen += stepper.step(gradient.square().mean() + as_loss(output))
        return seen

    outcome = compare(script, tolerance=1e-5)
    assert outcome.ran("aot"), outcome.reasons()


def test_draws_that_are_not_preserved_are_left_to_eager() -> None:
    class Fresh(Variant):
        def part(self, x: torch.Tensor) -> torch.Tensor:
            return self.upper(nn.functional.dropout(self.lower(x), 0.5))  # type: ignore[no-any-return]

    def script(wrap: Wrap) -> list[Any]:
        model = wrap(Fresh(lambda model, x: model.checkpointed(x, preserve_rng_state=False)))
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
        as_loss(model(x)).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    outcome = compare(script, tolerance=1e-5)
    assert any("draws other random numbers" in reason for reason in outcome.reasons()), outcome.reasons()


def test_torch_compile_takes_any_checkpointed_part() -> None:
    model = Checkpointed(lambda: Changing(CHANGES["average"]))
    compiled = torch.compile(model, backend=agspeed_backend, options={"mode": "deterministic", "backends": ["aot"]})
    sum(map(as_loss, compiled(torch.randn(6, 8)))).backward()  # type: ignore[union-attr, attr-defined]


def test_a_momentum_that_is_no_number_trains_as_eager() -> None:
    compare(lambda wrap: both_heads(Stepper(wrap, Checkpointed(lambda: nn.BatchNorm1d(16, momentum=None)))))


def test_a_norm_used_twice_trains_as_eager() -> None:
    compare(lambda wrap: both_heads(Stepper(wrap, Checkpointed(_used_twice))), tolerance=1e-5)
