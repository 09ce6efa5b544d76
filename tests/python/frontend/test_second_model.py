# SPDX-License-Identifier: Apache-2.0
"""A model is captured and compiled in the same way, whatever Dynamo has learnt from other models of the process."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import agspeed
from agspeed.frontend.session import Session, session_of

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[3]
NUM_MODELS = 16


class Net(nn.Module):
    """A class that all models share. `kind` selects what its code does besides."""

    def __init__(self, width: int, kind: str = "whole") -> None:
        super().__init__()
        torch.manual_seed(width)
        self.first, self.second = nn.Linear(width, 8), nn.Linear(8, 3)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        if self.kind == "broken":
            torch._dynamo.graph_break()
        for _ in range(2):
            if self.kind == "looping":  # a break in a loop makes Dynamo give up the whole code object
                torch._dynamo.graph_break()
            hidden = hidden.sin()
        return self.second(hidden.tanh())


class Checkpointed(nn.Module):
    """Runs `within` in a graph of its own."""

    def __init__(self, within: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.within = nn.Linear(6, 3), within

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.within, self.first(x), use_reentrant=False)  # type: ignore[no-any-return]


def train(model: nn.Module, shape: tuple[int, ...], steps: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(*shape, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()


def tuned(width: int, kind: str, *batch: int) -> tuple[nn.Module, Session]:
    """Returns a model for which `aot` was chosen without timing, after a few steps on batches of that shape."""
    model = agspeed.optimize(Net(width, kind), mode="deterministic", backends=["aot"])
    train(model, (*batch, width))
    session = session_of(model)
    assert session is not None
    return model, session


def test_regions_that_differ_in_a_checkpointed_part_alone_are_not_taken_for_each_other() -> None:
    regions = []
    for within in (torch.tanh, torch.sigmoid):
        model = agspeed.optimize(Checkpointed(within), mode="deterministic", backends=["aot"])
        train(model, (4, 6))
        session = session_of(model)
        assert session is not None
        regions.append(session.regions[0])
    assert regions[0].gm.code == regions[1].gm.code, "what differs is below"
    assert regions[0].key != regions[1].key


def numbered(index: int) -> tuple[nn.Module, Session]:
    """Returns one of sixteen models. Each has other sizes, some have a graph break, and some have inputs of another
    rank."""
    batch = (2 + index,) if index % 3 else (2 + index, 3)
    return tuned(4 + index, "broken" if index % 4 == 3 else "whole", *batch)


def description(session: Session) -> dict[str, Any]:
    """Returns the facts of a captured model that depend neither on time nor on the process."""
    regions = [[region.key, region.selected, region.other_sizes] for region in session.regions]
    return {"plan": session.plan, "reason": session.reason, "regions": regions}


def described_in_a_process_of_its_own(index: int) -> dict[str, Any]:
    code = f"""
import json
from tests.python.frontend.test_second_model import description, numbered
model, session = numbered({index})
print(json.dumps(description(session)))
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


@pytest.mark.thorough
def test_sixteen_models_of_one_process_are_captured_as_each_would_be_alone() -> None:
    kept = [numbered(index) for index in range(NUM_MODELS)]
    found = [description(session) for _, session in kept]
    for index, (_, session) in enumerate(kept):
        assert session.plan == "aot", f"model {index}: {session.reason}"
        assert [region.other_sizes for region in session.regions] == [[]] * (1 + (index % 4 == 3)), f"model {index}"
        assert [region.selected for region in session.regions] == ["aot"] * len(session.regions), f"model {index}"
    last = NUM_MODELS - 1
    assert found[last] == described_in_a_process_of_its_own(last)


@pytest.mark.slow
def test_sizes_that_vary_in_one_model_stay_fixed_in_the_next() -> None:
    first, session = tuned(6, "broken", 5)
    train(first, (7, 6))
    assert any(region.other_sizes for region in session.regions), "the first model's batch size became symbolic"
    _, session = tuned(6, "broken", 9)
    assert [region.other_sizes for region in session.regions] == [[], []]


def test_sizes_of_a_model_do_not_make_those_of_torch_compile_symbolic() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen.extend(example_inputs)
        return gm.forward

    tuned(6, "broken", 5)
    torch.compile(Net(6, "broken"), backend=backend)(torch.ones(7, 6))
    assert seen and not any(isinstance(value, torch.SymInt) for value in seen)


def test_code_that_one_model_gave_up_is_captured_for_the_next() -> None:
    _, session = tuned(6, "looping", 5)
    assert session.plan == "eager" and session.regions == []
    _, session = tuned(6, "broken", 5)
    assert session.plan == "aot" and len(session.regions) == 2, session.reason


def test_code_that_one_model_gives_up_stays_compiled_for_the_others() -> None:
    model, session = tuned(6, "broken", 5)
    tuned(6, "looping", 5)
    runs: list[int] = []
    for region in session.regions:
        region.dispatcher.set_target(lambda *args, region=region: runs.append(region.index) or region.gm(*args))
    train(model, (5, 6), steps=1)
    assert runs == [0, 1]


def test_models_that_were_freed_leave_nothing_behind() -> None:
    watched: list[weakref.ref[Any]] = []
    for index, kind in enumerate(["whole", "broken", "broken"]):
        model, session = tuned(6 + index, kind, 5)
        watched += [weakref.ref(model), weakref.ref(session), *map(weakref.ref, session.regions)]
    assert len(watched) == 11
    del model, session
    deadline = time.monotonic() + 30
    while any(kept() is not None for kept in watched) and time.monotonic() < deadline:
        gc.collect()  # again, because a collection does nothing while another thread collects
        time.sleep(0.05)
    assert [kept() for kept in watched if kept() is not None] == []


@pytest.mark.parametrize("kind", ["whole", "broken"])
def test_a_model_is_trained_on_after_another_of_its_class_was_freed(kind: str) -> None:
    model, session = tuned(6, kind, 5)
    other, _ = tuned(7, kind, 5)
    del other, _
    gc.collect()
    before = len(session.regions)
    train(model, (5, 6))
    assert len(session.regions) == before, "captured again"
