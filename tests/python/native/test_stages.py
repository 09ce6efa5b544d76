# SPDX-License-Identifier: Apache-2.0
"""Backwards whose gradients leave in stages, without a group of ranks: gradients are equal, each leaves at its time,
and its receiver may change it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from agspeed import native
from agspeed.backends import CompileOptions, candidate
from agspeed.backends.joint import fake_inputs
from tests.python.support.pairs import pairs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

CANDIDATES = ("aot", "native")
STAGED = (*CANDIDATES, "inductor-staged")


@pytest.fixture(autouse=True)
def _without_what_dynamo_knows() -> None:
    torch._dynamo.reset()


class Residual(nn.Module):
    """Blocks whose weights the backward reads until the gradient of their input is known."""

    def __init__(self, depth: int = 5, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.tanh(norm(layer(x)))
        return x


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(8, 4, 2, 2)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = functional.relu(norm(layer(x)))
        return x.mean((2, 3))


class Branches(nn.Module):
    """Two outputs, a tensor used twice, and a parameter that gradients reach along two paths."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
        self.scale = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.one(x).split(8, dim=1)
        joined = torch.cat([hidden[1], hidden[0]], dim=1) * self.scale
        return self.two(joined), (joined + self.scale).sigmoid()


def compiled(model: nn.Module, name: str, stage_bytes: int) -> tuple[nn.Module, list[Any]]:
    """Returns `model` with its graph run by candidate `name`, and a list that its runner will be added to."""
    runners: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        options = CompileOptions(num_threads=1, stage_bytes=stage_bytes)
        runners.append(candidate(name).compile(gm, fake_inputs(gm), options))
        return runners[-1]

    return torch.compile(model, backend=backend, dynamic=False), runners


def total(output: Any) -> torch.Tensor:
    parts = output if isinstance(output, tuple) else (output,)
    return torch.stack([(part * torch.linspace(-1, 1, part.shape[-1])).square().mean() for part in parts]).sum()


def batch() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(8))


@pytest.mark.parametrize(("make", "stage_bytes"), pairs([Residual, Convolutions, Branches], [1, 900, 1 << 30]))
@pytest.mark.parametrize("name", CANDIDATES)
def test_gradients_equal_those_of_one_piece(name: str, make: Callable[[], nn.Module], stage_bytes: int) -> None:
    whole, staged = make(), make()
    (one, of_one), (many, of_many) = compiled(whole, name, 0), compiled(staged, name, stage_bytes)
    for model in (one, many):
        total(model(batch())).backward()
    assert of_one[0].num_stages == 1
    assert (of_many[0].num_stages > 1) == (stage_bytes < 1 << 30), of_many[0].num_stages
    for (key, expected), found in zip(whole.named_parameters(), staged.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad), f"{name}, {make.__name__}, {stage_bytes} bytes: {key}"


@pytest.mark.parametrize("name", CANDIDATES)
def test_gradients_of_later_layers_leave_while_earlier_ones_are_still_to_be_computed(name: str) -> None:
    model = Residual()
    run, runners = compiled(model, name, 1)
    left: list[str] = []
    for key, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, key=key: left.append(key))
    total(run(batch())).backward()
    layers = [int(key.split(".")[1]) for key in left if "weight" in key and key.startswith("layers")]
    assert layers == [4, 3, 2, 1, 0], left
    assert runners[0].num_stages >= 5, runners[0].num_stages


@pytest.mark.parametrize(("make", "name"), pairs([Residual, Convolutions, Branches], CANDIDATES))
def test_an_optimizer_may_step_as_soon_as_a_gradient_is_there(name: str, make: Callable[[], nn.Module]) -> None:
    """A hook uses the gradient's own memory as scratch; the rest of the backward must not read gradient or weight."""
    eager = make()
    ours = copy.deepcopy(eager)
    run, runners = compiled(ours, name, 1)
    for model, call in ((eager, eager), (ours, run)):
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(_step)
        for _ in range(3):
            total(call(batch())).backward()
    assert runners[0].num_stages > 1
    for (key, expected), found in zip(eager.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")


def _step(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter -= 0.1 * parameter.grad
        parameter.grad.fill_(float("nan"))
    parameter.grad = None


def test_stages_launch_the_same_kernels() -> None:
    whole, staged = Residual(), Residual()
    (one, of_one), (many, of_many) = compiled(whole, "native", 0), compiled(staged, "native", 1)
    for model in (one, many):
        total(model(batch())).backward()
    assert of_many[0].num_stages >= 5
    assert (of_many[0].num_kernels, of_many[0].num_operators) == (of_one[0].num_kernels, of_one[0].num_operators)


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_hook_that_replaces_or_drops_a_gradient_changes_that_one_alone(name: str) -> None:
    expected, found = Residual(), Residual()
    run, _ = compiled(found, name, 1)
    for model, call in ((expected, expected), (found, run)):
        model.layers[4].weight.register_hook(torch.zeros_like)
        model.layers[3].weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
        total(call(batch())).backward()
    assert found.layers[3].weight.grad is None
    for (key, one), other in zip(expected.named_parameters(), found.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(
                other.grad, one.grad, rtol=1e-5, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}"
            )


@pytest.mark.parametrize("name", CANDIDATES)
def test_an_exception_of_a_hook_between_stages_passes_and_the_next_backward_is_right(name: str) -> None:
    model = Residual()
    run, _ = compiled(model, name, 1)
    total(run(batch())).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    for _ in range(6):  # more than the number of runs that may be idle at once
        model.zero_grad()
        handle = model.layers[2].weight.register_hook(_raise)
        with pytest.raises(ZeroDivisionError, match="in a hook"):
            total(run(batch())).backward()
        assert model.layers[4].weight.grad is not None and model.layers[0].weight.grad is None
        handle.remove()
    model.zero_grad()
    total(run(batch())).backward()
    assert all(torch.equal(one, p.grad) for one, p in zip(expected, model.parameters(), strict=True))


def _raise(gradient: torch.Tensor) -> None:
    raise ZeroDivisionError("in a hook")


@pytest.mark.thorough
def test_more_stages_than_are_useful_are_not_made() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(100)])
    for name in CANDIDATES:
        run, runners = compiled(copy.deepcopy(model), name, 1)
        total(run(torch.ones(2, 4))).backward()
        assert 32 < runners[0].num_stages <= 66, (name, runners[0].num_stages)
