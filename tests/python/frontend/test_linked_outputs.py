# SPDX-License-Identifier: Apache-2.0
"""Outputs that other outputs are computed from: hooks, retain_grad and autograd.grad get eager's gradients of them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed import native
from agspeed.frontend.graphs.linked_outputs import MAX_PIECES
from agspeed.frontend.session import session_of

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
BACKENDS = ["aot", "native", "inductor"]


class Features(nn.Module):
    """Returns features, and a result computed from them."""

    def __init__(self, num_layers: int = 1) -> None:
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(num_layers))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for layer in self.body:
            x = torch.tanh(layer(nn.functional.dropout(x, 0.1)))
            found.append(x)
        return (*found, self.head(x))


def _retained(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    *features, y = model(x)
    for feature in features:
        feature.retain_grad()
    (y.square().sum() + features[0].sum()).backward()
    return [feature.grad for feature in features]


def _with_hook(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    *features, y = model(x)
    features[0].register_hook(lambda gradient: -gradient)
    y.square().sum().backward()
    return []


def _asked(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    *features, y = model(x)
    y.square().sum().backward(retain_graph=True)
    return list(torch.autograd.grad(y.square().sum(), features))


def _penalised(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    *features, y = model(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), features[0], create_graph=True)
    gradient.square().sum().backward()
    return [gradient]


def _features_alone(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model(x)[0].square().sum().backward()
    return []


USES = [_retained, _with_hook, _asked, _penalised, _features_alone]


def _trained(use: Callable[[nn.Module, torch.Tensor], Any], model: nn.Module) -> list[torch.Tensor | None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(2)
    found: list[torch.Tensor | None] = []
    for step in range(6):
        optimizer.zero_grad()
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
        found += use(model, x)
        found += [p.grad.clone() if p.grad is not None else None for p in model.parameters()]
        optimizer.step()
    return found


@pytest.mark.parametrize(
    ("use", "backend"),
    [
        pytest.param(use, name, marks=[pytest.mark.thorough] if name == "inductor" and use is not _retained else [])
        for use, name in itertools.product(USES, BACKENDS)
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
def test_gradients_are_eagers(use: Callable[[nn.Module, torch.Tensor], Any], backend: str) -> None:
    def made() -> nn.Module:
        torch.manual_seed(1)
        return Features(num_layers=3)

    expected = _trained(use, made())
    model = made()
    agspeed.optimize(model, mode="deterministic", backends=[backend])
    actual = _trained(use, model)
    assert [value is None for value in actual] == [value is None for value in expected]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    session = session_of(model)
    assert session is not None and agspeed.status(model) == "tuned", agspeed.status(model).reason
    assert [region.selected for region in session.regions] == [backend] * 4


class Cached(nn.Module):
    """Returns keys and values beside the result, as transformers does. They are computed from parts of one tensor."""

    def __init__(self, is_written: bool = False) -> None:
        super().__init__()
        self.project, self.heads = nn.Linear(8, 24), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.is_written = is_written

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for head in self.heads:
            projected = self.project(x)
            query, key, value = (projected.narrow(-1, start, 8) for start in (0, 8, 16))
            keys, values = torch.tanh(key), torch.tanh(value)
            if self.is_written:
                projected.detach().add_(1.0)  # what the query reads from now on
            found += [keys, values]
            x = head(torch.tanh(query.unflatten(1, (2, 4)) * keys.view(5, 2, 4)).flatten(1) + values)
        return (*found, x)


@pytest.mark.parametrize("backend", BACKENDS[:2])
@pytest.mark.parametrize("use", [_retained, _with_hook])
@pytest.mark.parametrize("is_written", [False, True], ids=["read", "written"])
def test_keys_and_values_that_share_memory_with_the_query_cut_a_graph_once_for_each_layer(
    use: Callable[[nn.Module, torch.Tensor], Any], backend: str, is_written: bool
) -> None:
    torch.manual_seed(4)
    model = Cached(is_written)
    eager = copy.deepcopy(model)
    agspeed.optimize(model, mode="deterministic", backends=[backend])
    torch.testing.assert_close(_trained(use, model), _trained(use, eager), rtol=1e-4, atol=1e-6)
    session = session_of(model)
    assert session is not None
    if not is_written:
        assert [region.selected for region in session.regions] == [backend] * 3


class Watched(nn.Module):
    """Uses views and outputs under `no_grad` around an output from which another one is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.body(x)
        with torch.no_grad():
            shown = hidden.view(5, 2, 4)
        features = torch.tanh(hidden)
        with torch.no_grad():
            size = features.abs().mean()
        return features, self.head(features * shown.flatten(1) / (1 + size))


@pytest.mark.parametrize("backend", BACKENDS[:2])
@pytest.mark.parametrize("use", [_retained, _with_hook])
def test_what_has_no_gradient_in_eager_has_none_behind_a_cut(
    use: Callable[[nn.Module, torch.Tensor], Any], backend: str
) -> None:
    torch.manual_seed(4)
    model = Watched()
    eager = copy.deepcopy(model)
    agspeed.optimize(model, mode="deterministic", backends=[backend])
    torch.testing.assert_close(_trained(use, model), _trained(use, eager), rtol=1e-4, atol=1e-6)
    session = session_of(model)
    assert session is not None and [region.selected for region in session.regions] == [backend] * 2


def test_outputs_that_are_not_linked_stay_in_one_region() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            hidden = torch.tanh(x)
            y = self.first(hidden)
            return y, self.second(hidden), y.detach()

    model = Two()
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    for _ in range(3):
        model(torch.randn(5, 8))[1].sum().backward()
    session = session_of(model)
    assert session is not None and len(session.regions) == 1


def test_more_of_them_than_can_be_tuned_are_left_to_eager_with_the_reason() -> None:
    model = Features(num_layers=MAX_PIECES + 1)
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    for _ in range(3):
        assert all(gradient is not None for gradient in _retained(model, torch.randn(5, 8)))
    session = session_of(model)
    assert session is not None and not session.regions
    assert any("computed from each other" in reason for _, reason in session.history.fallbacks)
