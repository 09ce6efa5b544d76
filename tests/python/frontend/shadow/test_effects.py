# SPDX-License-Identifier: Apache-2.0
"""Forwards and backwards with side effects: a compared step leaves the same state as an eager step."""

from __future__ import annotations

import functools
import logging
import threading
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx, nn

import agspeed
from agspeed import native
from agspeed.frontend.plan_runner import PlanRunner
from agspeed.frontend.session import session_of
from agspeed.frontend.shadow.comparison import Comparison

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
_SEED = 13
Pair = namedtuple("Pair", "value scale")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)
        self.prepare()

    def prepare(self) -> None:
        """Creates the module's own state."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)))


class Momentum(Base):
    """A key encoder that follows the query encoder by a moving average (MoCo)."""

    def prepare(self) -> None:
        self.key = nn.Parameter(torch.zeros(4, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.key.mul_(0.9).add_(self.a.weight, alpha=0.1)
        return super().forward(x @ self.key)


class Decay(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.b.weight.mul_(0.99)
        return super().forward(x)


class DecayByData(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.b.weight.data = self.b.weight.data * 0.99
        return super().forward(x)


COUNTER = torch.zeros(())


class GlobalTensor(Base):
    def prepare(self) -> None:
        COUNTER.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        COUNTER.add_(0.1)
        return super().forward(x) * COUNTER


class TensorInATuple(Base):
    def prepare(self) -> None:
        self.held = (torch.zeros(()),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held[0].add_(0.1)
        return super().forward(x) * self.held[0]


class Array(Base):
    def prepare(self) -> None:
        self.counts = np.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts[0] += 1
        return super().forward(x)


class MovingBuffer(Base):
    def prepare(self) -> None:
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(1.01)
        return self.b(torch.tanh(self.a(x) * self.scale))


class ReplacedBuffer(Base):
    def prepare(self) -> None:
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.a(x))
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.b(hidden - self.mean)


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * (1 + 0.1 * torch.rand_like(g))


class RandomBackward(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(DrawsInBackward.apply(torch.tanh(self.a(x))))


class Meter:
    def __init__(self, step: float) -> None:
        self.step, self.count, self.total = step, 0, torch.zeros(())


METERS = [Meter(1.0), Meter(2.0)]
FIRST, SECOND = METERS


class TwoMeters(Base):
    def prepare(self) -> None:
        for meter in METERS:
            meter.count = 0
            meter.total.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        FIRST.count += 1
        SECOND.count += 1
        FIRST.total.add_(FIRST.step)
        SECOND.total.add_(SECOND.step)
        return super().forward(x)


class AuxiliaryLoss(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.a(x))
        self.auxiliary = hidden.square().mean()
        return self.b(hidden)


@dataclass
class Result:
    y: torch.Tensor
    n: int


class ReturnsAnObject(Base):
    def forward(self, x: torch.Tensor) -> Result:
        return Result(super().forward(x), 1)


KINDS: list[type[Base]] = [
    AuxiliaryLoss, Array, Decay, DecayByData, GlobalTensor, Momentum, MovingBuffer, RandomBackward, ReplacedBuffer,
    ReturnsAnObject, TensorInATuple, TwoMeters,
]  # fmt: skip


def _train(model: nn.Module, num_steps: int = 9) -> list[Any]:
    torch.manual_seed(_SEED)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.05)
    seen: list[Any] = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        output = model(torch.randn(5, 4))
        loss = (output.y if isinstance(output, Result) else output).square().mean() + getattr(model, "auxiliary", 0.0)
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().clone())
    seen += [value.detach().clone() for value in model.state_dict().values()]
    seen += [torch.tensor(getattr(model, "counts", [0.0])), COUNTER.clone(), torch.rand(2)]
    return [*seen, *(meter.total.clone() for meter in METERS), torch.tensor([meter.count for meter in METERS])]


def _made(kind: Callable[[], Any]) -> Any:
    torch.manual_seed(_SEED)
    return kind()


def _optimized(kind: Callable[[], Any], **keywords: Any) -> Any:
    model = _made(kind)
    agspeed.optimize(model, mode="deterministic", backends=["aot"], **keywords)
    return model


def _comparison(model: nn.Module) -> Comparison:
    session = session_of(model)
    assert session is not None and session.runner.comparison is not None
    return session.runner.comparison


def _spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each captured tanh 1.04 times as large."""
    add_region = PlanRunner.add_region

    def add(runner: PlanRunner, gm: fx.GraphModule, *args: Any, **keywords: Any) -> Any:
        for node in [node for node in gm.graph.nodes if node.target is torch.tanh]:
            with gm.graph.inserting_after(node):
                scaled = gm.graph.call_function(torch.mul, (node, 1.04))
            scaled.meta = node.meta
            node.replace_all_uses_with(scaled, delete_user_cb=lambda user, scaled=scaled: user is not scaled)
        gm.recompile()
        return add_region(runner, gm, *args, **keywords)

    monkeypatch.setattr(PlanRunner, "add_region", add)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_all_is_as_after_eager_steps(kind: type[Base]) -> None:
    expected = _train(_made(kind))
    actual = _train(_optimized(kind))
    for index, (mine, reference) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(
            mine, reference, rtol=1e-5, atol=1e-6, msg=lambda text, i=index: f"value {i}: {text}"
        )


@pytest.mark.parametrize(
    "kind", [MovingBuffer, ReplacedBuffer, ReturnsAnObject, AuxiliaryLoss], ids=lambda k: k.__name__
)
def test_a_wrong_graph_is_found_whatever_the_forward_does(monkeypatch: pytest.MonkeyPatch, kind: type[Base]) -> None:
    expected = _train(_made(kind))
    _spoil(monkeypatch)
    model = _optimized(kind)
    for mine, reference in zip(_train(model), expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)
    assert _comparison(model).finding is not None, _comparison(model).state()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_wrong_graph_is_found_under_autocast(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    _spoil(monkeypatch)
    model = _optimized(Base)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = model(torch.randn(5, 4)).float().square().mean()
        loss.backward()
        optimizer.step()
    assert _comparison(model).finding is not None, _comparison(model).state()


def test_two_forwards_within_one_autocast_are_no_obstacle() -> None:
    model = _optimized(Base)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(torch.randn(5, 4)) - model(torch.randn(5, 4))).float().square().mean()
        loss.backward()
        optimizer.step()
    assert _comparison(model).obstacle is None and agspeed.status(model) == "tuned", _comparison(model).state()


def test_calls_of_several_kinds_in_a_step_are_all_captured() -> None:
    class Tasks(Base):
        def forward(self, x: torch.Tensor, task: str = "a") -> torch.Tensor:
            return super().forward(x) * {"a": 1.0, "b": 2.0, "c": 3.0}[task]

    model = _optimized(Tasks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        sum(model(torch.randn(5, 4), task).square().mean() for task in "abc").backward()  # type: ignore[union-attr]
        optimizer.step()
    session = session_of(model)
    assert session is not None
    assert len(session.regions) == 3 and _comparison(model).num_compared < 20, _comparison(model).state()


class _Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_odd_state_costs_the_comparison_and_nothing_else() -> None:
    class Odd(Base):
        def prepare(self) -> None:
            self.objects = {_Unprintable()}
            self.register_buffer("spread", torch.tensor(float("nan")).expand(4, 3))
            self.pair = Pair(1.0, 2.0)

    model = _optimized(Odd)
    for _ in range(6):
        model(torch.randn(5, 4)).square().mean().backward()
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason


def test_forwards_of_other_threads_run_beside_training() -> None:
    model = _optimized(Base)
    optimizer = torch.optim.SGD([model.a.bias], lr=0.0)
    failures: list[BaseException] = []
    is_over = threading.Event()

    def call() -> None:
        try:
            while not is_over.is_set():
                torch.autograd.grad(model(torch.ones(2, 4)).sum(), model.a.weight)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for _ in range(60):
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
    finally:
        is_over.set()
        thread.join()
    assert not failures, failures
    assert _comparison(model).finding is None


def test_gradients_that_are_changed_in_place_later_are_read_as_they_were() -> None:
    """DistributedDataParallel reduces gradients in place in this way."""
    model = _optimized(Base)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def halve(value: torch.Tensor) -> None:
        assert value.grad is not None
        value.grad.mul_(0.5)

    for value in model.parameters():
        value.register_post_accumulate_grad_hook(halve)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    assert agspeed.status(model) == "tuned" and _comparison(model).num_compared >= 2, _comparison(model).state()


_logger = logging.getLogger(__name__)


class Warned(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _logger.warning_once("this model is old")  # type: ignore[attr-defined]
        return super().forward(x)


@pytest.mark.smoke
def test_a_message_that_a_library_logs_once_is_logged_once_and_the_step_is_compared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers adds such a method to all loggers. Without care, a graph breaks at it, and no step is compared."""
    log_once = functools.lru_cache(None)(lambda logger, text: logger.warning(text))
    monkeypatch.setattr(logging.Logger, "warning_once", log_once, raising=False)
    monkeypatch.setattr(logging.Logger, "info_once", functools.lru_cache(None)(logging.Logger.info), raising=False)
    torch.manual_seed(_SEED)
    model = Warned()
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    for _ in range(4):
        model(torch.ones(2, 4)).square().sum().backward()
    report = agspeed.report(model).to_dict()
    assert [record.message for record in caplog.records].count("this model is old") == 1
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert (report["comparison"]["obstacle"], report["graph_breaks"]) == (None, [])
    assert report["comparison"]["steps"] >= 1 and len(report["regions"]) == 1
