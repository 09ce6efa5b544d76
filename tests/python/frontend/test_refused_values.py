# SPDX-License-Identifier: Apache-2.0
"""Values that eager refuses raise eager's error in every backend, and training goes on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import agspeed
from agspeed import native
from agspeed.frontend.session import session_of
from tests.python.support.pairs import first_of, pairs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
BACKENDS = ["aot", "native"]
ROWS, WIDTH = 6, 8
_SEED = 11


class Embedded(nn.Module):
    def __init__(self, use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table, self.head, self.use = nn.Linear(WIDTH, ROWS, bias=False), nn.Linear(WIDTH, WIDTH), use

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.use(self.table.weight * 2, index))).square().sum()  # type: ignore[no-any-return]


def _cross_entropy(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return rows * functional.cross_entropy(rows.t()[:4], index)


def _shifted(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    shifted = index.new_zeros(index.shape)
    shifted[1:] = index[:-1].clone()
    return functional.embedding(shifted, rows)


USES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "embedding": lambda rows, index: functional.embedding(index, rows),
    "embedding of a view": lambda rows, index: functional.embedding(index.view(2, 2).t(), rows),
    "embedding of shifted": _shifted,
    "cross_entropy": _cross_entropy,
    "index_select": lambda rows, index: rows.index_select(0, index),
    "index_add": lambda rows, index: rows.index_add(0, index, torch.tanh(rows[:4])),
    "scatter_add": lambda rows, index: rows.scatter_add(0, index[:, None].expand(4, WIDTH), torch.tanh(rows[:4])),
    "gather": lambda rows, index: rows.gather(0, index[:, None].expand(4, WIDTH)),
}


def _trained(use: Any, backend: str | None) -> tuple[list[torch.Tensor], BaseException | None, nn.Module]:
    torch.manual_seed(_SEED)
    model = Embedded(use)
    if backend is not None:
        agspeed.optimize(model, mode="deterministic", backends=[backend])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    error = None
    for step in range(6):
        index = torch.tensor([1, -1, 2, 0] if step == 4 else [step, 3, 0, 1])
        optimizer.zero_grad()
        try:
            model(index).backward()
        except Exception as raised:
            error = raised
            continue
        optimizer.step()
    return [value.detach().clone() for value in model.parameters()], error, model


@pytest.mark.parametrize(
    ("name", "backend"), [*pairs(list(USES), BACKENDS), *first_of([(name, "inductor") for name in USES], 1)]
)
def test_a_negative_index_raises_as_in_eager(name: str, backend: str) -> None:
    expected, error, _ = _trained(USES[name], None)
    actual, raised, model = _trained(USES[name], backend)
    assert error is not None and type(raised) is type(error), (raised, error)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{text} (seed {_SEED})")
    _assert_ran(model, backend)


@pytest.mark.parametrize("backend", first_of(["native", "aot", "inductor"], 1))
def test_ignored_targets_stay_compiled(backend: str) -> None:
    def use(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return rows * functional.cross_entropy(rows[:4], torch.where(index == 3, -100, index))

    def masked(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return rows * functional.cross_entropy(rows[:4], index, ignore_index=-1)

    def shifted(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        inputs = index.new_zeros(index.shape)
        inputs[1:] = torch.where(index == 3, -100, index)[:-1].clone()
        inputs.masked_fill_(inputs == -100, 0)
        return functional.embedding(inputs, rows)

    for form in (use, masked, shifted):
        expected, _, _ = _trained(form, None)
        actual, _, model = _trained(form, backend)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        _assert_ran(model, backend)


@pytest.mark.parametrize("backend", first_of(["native", "aot", "inductor"], 1))
def test_an_input_changed_before_the_backward_is_noticed(backend: str) -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(8, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x.reshape(-1, 8) @ self.w)

    model = Product()
    agspeed.optimize(model, mode="deterministic", backends=[backend])
    for _ in range(4):
        model(torch.ones(2, 3, 8)).sum().backward()
    _assert_ran(model, backend)
    for change in (lambda x: x.zero_(), lambda x: x[0].add_(1)):
        x = torch.ones(2, 3, 8)
        y = model(x)
        change(x)  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def _assert_ran(model: nn.Module, backend: str) -> None:
    session = session_of(model)
    assert session is not None and agspeed.status(model) == "tuned", agspeed.status(model).reason
    reasons = [outcome.reason for region in session.regions for outcome in region.outcomes.values()]
    assert any(region.selected == backend for region in session.regions), reasons
