# SPDX-License-Identifier: Apache-2.0
"""Sixteen further models train natively as eagerly, and each run gives the same bits, with one thread and with two."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import agspeed
from agspeed.frontend.shadow.comparison import Comparison
from benchmarks.workloads.base import Training
from tests.python.native.further_models import WORKLOADS
from tests.python.support.equality import assert_same
from tests.python.support.pairs import thorough

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_native")]

_NUM_STEPS = 4
_WARM_UP = 3
_CLOSE = 0.005
"""A tensor may be this part of its way from where eager training has moved it."""
_MOST_NOISE = 8
"""It may also deviate by this factor more than after a start with other last bits, which moves BatchNorm far."""
_NUM_NOISY = 3
_FAR = {"deeplabv3": 0.5}
"""Larger limits than _CLOSE. In DeepLab, BatchNorm normalises 8 values, and rounding decides the sign of some results
before a ReLU."""
_ALWAYS = ("gemma", "squeezenet")
_NAMES = [name if name in _ALWAYS else thorough(name) for name in WORKLOADS]


State = dict[str, Tensor]


@dataclass
class Outcome:
    """The losses of a short training, the state after each step, and numbers drawn after it."""

    losses: list[Tensor]
    states: list[State]
    drawn: Tensor


def _state(training: Training) -> State:
    return copy.deepcopy(training.modules["model"].state_dict())


def _train_from(training: Training, start: State) -> Outcome:
    """Trains some steps from the state `start`, with a new state of the optimizer and the same random numbers."""
    training.modules["model"].load_state_dict(start)
    for optimizer in training.optimizers:
        optimizer.state.clear()
    torch.manual_seed(11)
    losses, states = [], []
    for batch in training.batches[:_NUM_STEPS]:
        losses.append(training.step(batch))
        states.append(_state(training))
    return Outcome(losses, states, torch.rand(3))


def _with_other_last_bits(state: State, seed: int) -> State:
    generator, changed = torch.Generator().manual_seed(seed), copy.deepcopy(state)
    for value in changed.values():
        if value.is_floating_point():
            value.mul_(1 + torch.finfo(value.dtype).eps / 2 * torch.randn(value.shape, generator=generator))
    return changed


def _deviations(found: Outcome, expected: Outcome, start: State) -> list[float]:
    """Returns for each step how far the worst tensor is from where it should be, as a part of the way that it went."""
    worst = []
    names = [name for name, value in start.items() if value.is_floating_point()]
    size = sum(start[name].numel() for name in names)
    for mine, other in zip(found.states, expected.states, strict=True):
        ways = {name: (other[name] - start[name]).double().norm() for name in names}
        usual = float(torch.stack(list(ways.values())).norm()) / size**0.5
        parts = []
        for name in names:
            # Tensors that hardly move, such as a bias before BatchNorm, have gradients of rounding errors alone.
            own, length = start[name].double(), start[name].numel() ** 0.5
            least = 1e-3 * usual * length + 1e-5 * float(own.norm())
            parts.append(float((mine[name] - other[name]).double().norm()) / max(float(ways[name]), least, 1e-30))
        worst.append(max(parts))
    return worst


@contextmanager
def _native(training: Training, folder: Path) -> Iterator[None]:
    """Trains natively inside the block. Asserts that all captured graphs run natively."""
    torch._dynamo.reset()
    model = training.modules["model"]
    agspeed.optimize(model, mode="deterministic", backends=["native"], cache_dir=folder)
    try:
        for batch in training.batches[:_WARM_UP]:
            training.step(batch)
        yield
        report = agspeed.report(model).to_dict()
        assert report["decision"]["chosen"] == "native", report["decision"]["why"]
        lost = [row["reason"] for region in report["regions"] for row in region["candidates"] if row["reason"]]
        assert {region["chosen"] for region in report["regions"]} == {"native"}, lost
        assert not [fall for fall in report["fallbacks"] if fall["region"] is not None], report["fallbacks"]
        assert report["comparison"]["difference"] is None, report["comparison"]
    finally:
        agspeed.restore(model)


def _train_watched(training: Training, start: State) -> Outcome:
    """As `_train_from`. Asserts that native programs run in each step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        outcome = _train_from(training, start)
    events = [event.name for event in profile.events() or ()]
    counts = [events.count(f"agspeed::{direction}") for direction in ("forward", "backward")]
    assert min(counts) >= _NUM_STEPS, f"{counts} native runs in {_NUM_STEPS} steps"
    return outcome


@pytest.mark.parametrize("name", _NAMES)
def test_it_trains_as_eager_and_always_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    training = WORKLOADS[name].build()
    start = _state(training)
    eager = _train_from(training, start)
    noisy = [_train_from(training, _with_other_last_bits(start, seed)) for seed in range(_NUM_NOISY)]
    noise = [max(each) for each in zip(*(_deviations(run, eager, start) for run in noisy), strict=True)]
    # After the first step, no step runs eagerly to be compared with the captured graphs.
    monkeypatch.setattr(Comparison, "_is_next_due", lambda self: False)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        training = WORKLOADS[name].build()
        assert_same(_state(training), start)
        with _native(training, tmp_path / str(threads)):
            first, second = _train_watched(training, start), _train_from(training, start)
        found = _deviations(first, eager, start)
        print(f"{name}, {threads} threads: deviations {found}, of rounding {noise}")
        for step, (own, usual) in enumerate(zip(found, noise, strict=True)):
            assert own <= max(_FAR.get(name, _CLOSE), _MOST_NOISE * usual), (
                f"step {step}: {own}, but rounding makes {usual}"
            )
        assert_same(first.drawn, eager.drawn)
        assert_same(vars(second), vars(first))
