# SPDX-License-Identifier: Apache-2.0
"""Graphs with symbolic sizes: the gate tries sizes that the graph was not captured with, and calls stay within them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.backends import candidate
from agspeed.frontend.session import Session, session_of
from agspeed.regions.sizes import resized
from agspeed.tuning.child.job import read_region, write_region
from tests.python.support.small_models import FAST

pytestmark = pytest.mark.usefixtures("one_thread")

CAPTURED = 12
Sizes = Callable[[int], bool]


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(size: int) -> torch.Tensor:
    return torch.randn(size, 8, generator=torch.Generator().manual_seed(size))


def wrong_where(monkeypatch: pytest.MonkeyPatch, is_wrong: Sizes) -> list[int]:
    """Makes `aot`'s code add 0.01 at the batch sizes for which `is_wrong` holds. Returns the list of sizes in its
    calls."""
    cls, called = type(candidate("aot")), []
    original = cls.compile

    def compile_wrongly(self: Any, *args: Any) -> Any:
        runner = original(self, *args)

        def run(*inputs: Any) -> Sequence[Any]:
            size = next(value for value in inputs if isinstance(value, int))
            called.append(size)
            return [out + 0.01 if is_wrong(size) else out for out in runner(*inputs)]

        return run

    monkeypatch.setattr(cls, "compile", compile_wrongly)
    return called


def train(found: nn.Module, *sizes: int) -> list[torch.Tensor]:
    """Runs one step without an update for each batch size. Returns the results."""
    optimizer = torch.optim.SGD(found.parameters(), lr=0.0)
    results = []
    for size in sizes:
        optimizer.zero_grad()
        results.append(found(batch(size)))
        results[-1].sum().backward()
        optimizer.step()
    return [result.detach() for result in results]


def tried(**settings: Any) -> tuple[nn.Module, Session]:
    """Returns a model with one region of symbolic batch size, after `aot` was tried on it."""
    found = agspeed.optimize(model(), **{**FAST, "dynamic": True, **settings})
    train(found, *[CAPTURED] * 4)
    session = session_of(found)
    assert session is not None and len(session.regions) == 1
    return found, session


def outcome(session: Session) -> Any:
    (region,) = session.regions
    return region.outcomes["aot"]


@pytest.mark.parametrize("is_wrong", [lambda n: n < CAPTURED, lambda n: n > CAPTURED], ids=["smaller", "larger"])
def test_a_candidate_that_is_wrong_at_another_size_is_rejected(
    is_wrong: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_where(monkeypatch, is_wrong)
    found, session = tried()
    assert outcome(session).state == "rejected", outcome(session).reason
    assert f"(captured: {CAPTURED})" in outcome(session).reason
    assert outcome(session).gate["verdict"] == "rejected"
    assert torch.equal(train(found, 30)[0], model()(batch(30)))


def test_graphs_captured_while_tuning_are_compiled_before_they_are_timed() -> None:
    found = model()
    agspeed.optimize(found, mode="max", backends=["aot"], budget_s=60)
    for _ in range(200):
        train(found, 8, 24, 40)
        if agspeed.status(found) != "tuning":
            break
    session = session_of(found)
    assert session is not None and len(session.regions) >= 2
    states = [region.outcomes["aot"].state for region in session.regions]
    assert states == ["ready"] * len(states)


def test_exact_and_unchecked_numerics_keep_their_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_where(monkeypatch, lambda n: n != CAPTURED)
    assert outcome(tried(numerics="exact")[1]).state == "rejected"
    assert outcome(tried(numerics="off")[1]).state == "ready"


def test_sizes_far_away_run_eagerly_until_they_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = wrong_where(monkeypatch, lambda n: n >= 256)
    found, session = tried()
    assert outcome(session).state == "ready", outcome(session).reason
    sizes = (8, 15, 31, 70, 127, 300, 301, 20)
    called.clear()
    results = train(found, *sizes)
    for size, result in zip(sizes, results, strict=True):
        assert torch.allclose(result, model()(batch(size)), atol=1e-6), f"wrong at batch size {size}"
    assert called.count(8) == called.count(31) == called.count(127) == called.count(20) == 1
    assert called.count(70) > 1, "the gate calls it before it is used"
    assert 300 in called and 301 not in called, "a power of two that failed is not tried again"


def test_a_size_is_not_checked_while_saved_tensors_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    called = wrong_where(monkeypatch, lambda n: False)
    found, _ = tried()
    packed: list[torch.Size] = []
    called.clear()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        train(found, 300)
    assert 300 not in called
    expected: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: expected.append(t.shape) or t, lambda t: t):
        train(model(), 300)
    assert packed == expected


class Looks(nn.Module):
    """An embedding with labels, whose code branches on the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = self.table(tokens) * weights[:, None]
        return found.relu() if tokens.shape[0] % 4 == 0 else found.sigmoid()


def test_other_sizes_respect_guards_and_data() -> None:
    found = agspeed.optimize(Looks(), **{**FAST, "dynamic": True})
    tokens = torch.tensor([0, 4, 1, 3, 2, 4, 0, 1, 2, 3, 4, 4])
    optimizer = torch.optim.SGD(found.parameters(), lr=0.1)
    for _ in range(4):
        found(tokens, torch.ones(12)).sum().backward()
        optimizer.step()
    session = session_of(found)
    assert session is not None
    (region,) = session.regions
    integers = [i for i, value in enumerate(region.example_inputs) if isinstance(value, torch.SymInt)]
    assert [sizes[integers[0]] for sizes in region.other_sizes] == [8, 24]
    assert outcome(session).state == "ready", outcome(session).reason


def test_resized_inputs_repeat_data_and_keep_strides_and_flags() -> None:
    plain = torch.arange(6.0).reshape(3, 2).requires_grad_()
    columns = torch.arange(6.0).reshape(2, 3).t()
    repeated = torch.arange(2.0).expand(3, 2)
    made = resized([plain, columns, repeated, 3], [[[5, 2], [2, 1]], [[5, 2], [1, 5]], [[2, 2], [0, 1]], 5])
    assert torch.equal(made[0], plain[[0, 1, 2, 0, 1]]) and made[0].requires_grad and made[0].is_leaf
    assert torch.equal(made[1], columns[[0, 1, 2, 0, 1]]) and made[1].stride() == (1, 5)
    assert torch.equal(made[2], repeated[:2]) and made[2].stride() == (0, 1)
    assert made[3] == 5
    with pytest.raises(ValueError, match="nothing to repeat"):
        resized([torch.empty(0, 2)], [[[5, 2], [2, 1]]])


def test_a_graph_without_symbols_has_no_other_sizes() -> None:
    _, session = tried(dynamic=False)
    assert session.regions[0].other_sizes == []


def test_other_sizes_travel_to_the_child(tmp_path: Path) -> None:
    _, session = tried()
    region = session.regions[0]
    assert len(region.other_sizes) == 2
    with write_region(region, tmp_path) as file:
        assert read_region(file).other_sizes == region.other_sizes
