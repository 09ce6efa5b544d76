# SPDX-License-Identifier: Apache-2.0
"""Compiles with pauses: training continues between their parts, with its own settings and eager's results."""

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

import agspeed
from agspeed import native
from agspeed.backends import CompileOptions, registry
from agspeed.backends.base import Candidate, Runner
from agspeed.backends.inductor import Inductor
from agspeed.backends.joint import fake_inputs
from agspeed.tuning.controller import Controller
from tests.python.support.small_models import mlp, steps


def _settings() -> tuple[Any, ...]:
    return inductor_config.save_config(), functorch_config.save_config(), torch._guards.TracingContext.try_get()


@pytest.mark.slow
def test_between_the_parts_of_inductor_nothing_is_left_set() -> None:
    torch.manual_seed(3)
    torch._dynamo.reset()
    model, inputs = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()), torch.randn(4, 8)
    graphs: list[fx.GraphModule] = []
    runners: list[Runner] = []

    def backend(gm: fx.GraphModule, _: Sequence[Any]) -> Runner:
        graphs.append(gm)
        return lambda *args: (runners[0] if runners else gm.forward)(*args)

    captured = torch.compile(model, backend=backend)
    expected = torch.autograd.grad(captured(inputs).square().sum(), list(model.parameters()))
    before, num_pauses = _settings(), 0
    graph = copy.deepcopy(graphs[0])
    parts = Inductor().compile_in_parts(graph, fake_inputs(graph), CompileOptions(num_threads=1))
    while not runners:
        try:
            next(parts)
            num_pauses += 1
            assert _settings() == before
            steps(torch.compile(mlp(), backend="aot_eager"), 1)
        except StopIteration as end:
            runners.append(end.value)
    assert num_pauses == 2, "after the imports and after the forward"
    assert _settings() == before
    found = torch.autograd.grad(captured(inputs).square().sum(), list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


class Halves(Candidate):
    """Compiles a graph to itself, in two parts of a little more than a millisecond."""

    name = "halves"
    in_process = True
    seen: list[str]

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        raise AssertionError("training would stand still for all of it")

    def compile_in_parts(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
    ) -> Generator[None, None, Runner]:
        for half in ("first half", "second half"):
            self.seen.append(half)
            time.sleep(2e-3)
            yield
        return gm.forward


@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
def test_steps_run_between_parts_that_take_longer_than_training_may_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halves = Halves()
    halves.seen = []
    monkeypatch.setitem(registry.candidates(), "halves", halves)
    load = Controller._load
    monkeypatch.setattr(Controller, "_load", lambda self, name, _: load(self, name, 1e-3))
    model = agspeed.optimize(mlp(), mode="max", backends=["halves"])
    for _ in range(200):
        steps(model, 1)
        halves.seen.append("step")
        if agspeed.status(model) == "tuned":
            break
    first, second = halves.seen.index("first half"), halves.seen.index("second half")
    assert "step" in halves.seen[first:second], halves.seen
    (region,) = agspeed.report(model).to_dict()["regions"]
    (row,) = [row for row in region["candidates"] if row["name"] == "halves"]
    assert row["state"] == "chosen" and row["compile_s"] >= 4e-3, row


class Broken(Candidate):
    """Raises before its first part."""

    name = "broken"
    in_process = True

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        raise AssertionError("is not reached")

    def compile_in_parts(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
    ) -> Generator[None, None, Runner]:
        raise ValueError("no such target")


@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
def test_what_raises_before_its_first_part_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.candidates(), "broken", Broken())
    model = agspeed.optimize(mlp(), mode="max", backends=["broken"])
    steps(model, 40)
    (region,) = agspeed.report(model).to_dict()["regions"]
    (row,) = [row for row in region["candidates"] if row["name"] == "broken"]
    assert row["state"] == "failed" and "no such target" in row["reason"], row
