# SPDX-License-Identifier: Apache-2.0
"""Captured graphs are compared with the user's own module before they train, and Python's side effects happen once."""

from __future__ import annotations

import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import agspeed
from agspeed import native
from agspeed.errors import AgspeedError
from agspeed.frontend.plan_runner import PlanRunner
from agspeed.frontend.session import Session, session_of
from agspeed.frontend.shadow.comparison import Comparison

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

Batch = Callable[[int], torch.Tensor]
_SEED = 11


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def _batch(step: int) -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(_SEED + step))


def _train(model: nn.Module, num_steps: int = 8, batch: Batch = _batch, num_forwards: int = 1) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(_SEED)
    for step in range(num_steps):
        optimizer.zero_grad()
        for _ in range(num_forwards):
            output = model(batch(step))
            outputs = output if isinstance(output, tuple) else (output,)
            sum(value.square().sum() for value in outputs).backward()
        optimizer.step()
    return [value.detach().clone() for value in model.state_dict().values()]


def _made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    return kind()


def _optimized(kind: Callable[[], nn.Module], **keywords: Any) -> nn.Module:
    model = _made(kind)
    agspeed.optimize(model, mode="deterministic", **{"backends": ["aot"], **keywords})
    return model


def _session(model: nn.Module) -> Session:
    session = session_of(model)
    assert session is not None
    return session


def _comparison(model: nn.Module) -> Comparison:
    comparison = _session(model).runner.comparison
    assert comparison is not None
    return comparison


def _assert_equal(model: nn.Module, kind: Callable[[], nn.Module], **keywords: Any) -> None:
    expected = _train(_made(kind), **keywords)
    torch.testing.assert_close(_train(model, **keywords), expected, rtol=1e-5, atol=1e-6)


def _spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[fx.GraphModule], None]) -> None:
    """Changes every graph that is captured from now on, as a fault of the capture would."""
    add_region = PlanRunner.add_region

    def add_spoilt(runner: PlanRunner, gm: fx.GraphModule, *args: Any, **keywords: Any) -> Any:
        change(gm)
        gm.recompile()
        return add_region(runner, gm, *args, **keywords)

    monkeypatch.setattr(PlanRunner, "add_region", add_spoilt)


def _scale(gm: fx.GraphModule) -> None:
    """Makes the first tanh 1.001 times as large."""
    node = next(node for node in gm.graph.nodes if node.target is torch.tanh)
    with gm.graph.inserting_after(node):
        scaled = gm.graph.call_function(torch.mul, (node, 1.001))
    node.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)


def _detach(gm: fx.GraphModule) -> None:
    """Gives the right output, but no gradient to anything before the first tanh."""
    node = next(node for node in gm.graph.nodes if node.target is torch.tanh)
    with gm.graph.inserting_after(node):
        detached = gm.graph.call_method("detach", (node,))
    node.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)


@pytest.mark.parametrize("backend", ["graph-eager", "aot", "native"])
@pytest.mark.parametrize(
    ("change", "what"),
    [(_scale, "the output differs by"), (_detach, "the gradient of first.weight is missing on one side")],
    ids=["output", "gradient"],
)
def test_a_wrong_graph_never_trains(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    backend: str,
    change: Callable[[fx.GraphModule], None],
    what: str,
) -> None:
    _spoil(monkeypatch, change)
    model = _optimized(TwoLayers, backends=[backend])
    _assert_equal(model, TwoLayers)
    assert agspeed.status(model) == "eager" and what in agspeed.status(model).reason, agspeed.status(model).reason
    assert "since step 1" in agspeed.status(model).reason
    assert [record for record in caplog.records if record.levelname == "WARNING" and what in record.getMessage()]
    assert what in agspeed.report(model).to_dict()["comparison"]["difference"]


def test_a_wrong_graph_raises_where_strict_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    _spoil(monkeypatch, _scale)
    with pytest.raises(AgspeedError, match="compute other results than the module"):
        _train(_optimized(TwoLayers, strict=True))


class Everything(nn.Module):
    """A forward that updates statistics, draws from each generator, and changes attributes of each kind."""

    total = 0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.calls, self.history, self.latest = 0, [], deque(maxlen=3)
        self.seen: dict[str, int] = {}
        self.order = OrderedDict(a=1, b=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history.append(self.calls)
        self.seen["x"] = self.seen.get("x", 0) + 1
        x = self.norm(torch.tanh(self.first(x)))
        return self.second(torch.nn.functional.dropout(x, 0.5)) * (1 + self.calls % 2)


@pytest.mark.slow
def test_effects_of_the_forward_happen_once() -> None:
    eager, model = _made(Everything), _optimized(Everything)
    _train(eager)
    _assert_equal(model, Everything)
    for name in ("calls", "history", "seen", "latest", "order"):
        assert getattr(model, name) == getattr(eager, name), name
    assert torch.equal(model.norm.num_batches_tracked, eager.norm.num_batches_tracked)
    assert _comparison(model).num_compared > 0


def test_random_streams_go_on_as_after_an_eager_run() -> None:
    class Drawing(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.nn.functional.dropout(x, 0.3)) * random.random()

    def drawn(model: nn.Module) -> tuple[float, torch.Tensor]:
        random.seed(3)
        _train(model)
        return random.random(), torch.rand(3)

    python, numbers = drawn(_made(Drawing))
    model = _optimized(Drawing)
    other_python, other_numbers = drawn(model)
    assert python == other_python and torch.equal(numbers, other_numbers)
    assert _comparison(model).num_compared > 0 or "skipped" in str(_comparison(model).obstacle)  # up to torch 2.13


def test_printing_happens_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Printing(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.tanh(self.first(x))
            print("hidden", end=";")
            return self.second(torch.tanh(hidden))

    model = _optimized(Printing)
    _train(model)
    assert capsys.readouterr().out == "hidden;" * 8
    assert "must not run twice" in str(agspeed.report(model).to_dict()["comparison"]["obstacle"])
    assert _session(model).regions and agspeed.status(model) == "tuned"


def test_changes_of_objects_outside_of_the_module_happen_once() -> None:
    class Log:
        def __init__(self) -> None:
            self.count = 0

    logs = {}

    class Logging(TwoLayers):
        def __init__(self) -> None:
            super().__init__()
            logs[id(self)] = self.log = Log()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.log.count += 1
            return super().forward(x) * self.log.count

    model = _optimized(Logging)
    _assert_equal(model, Logging, num_steps=5)
    assert logs[id(model)].count == 5


def test_a_module_that_differs_from_itself_is_not_blamed_on_its_graph() -> None:
    counts = iter(range(1000))

    @torch.compiler.allow_in_graph
    def tick(x: torch.Tensor) -> torch.Tensor:
        return x + 0.01 * (next(counts) % 7)

    class Ticking(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(tick(x))

    model = _optimized(Ticking)
    _train(model)
    assert "two runs of the module with equal inputs differ" in str(_comparison(model).obstacle)
    assert _comparison(model).finding is None


def test_rounding_on_another_way_to_the_same_value_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def reorder(gm: fx.GraphModule) -> None:
        node = next(node for node in gm.graph.nodes if node.target is torch.tanh)
        with gm.graph.inserting_after(node):
            third = gm.graph.call_function(torch.div, (node, 3.0))
        with gm.graph.inserting_after(third):
            whole = gm.graph.call_function(torch.mul, (third, 3.0))
        third.meta = whole.meta = node.meta
        node.replace_all_uses_with(whole, delete_user_cb=lambda user: user is not third)
        gm.graph.lint()

    _spoil(monkeypatch, reorder)
    model = _optimized(TwoLayers)
    _assert_equal(model, TwoLayers)
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason
    assert _comparison(model).num_compared >= 3


def test_hooks_of_parameters_run_once_and_gradients_accumulate() -> None:
    calls: list[int] = []
    model = _optimized(TwoLayers)
    model.first.weight.register_hook(lambda gradient: calls.append(1))
    _assert_equal(model, TwoLayers, num_forwards=3)
    assert len(calls) == 8 * 3
    assert _comparison(model).num_compared > 0 and agspeed.status(model) == "tuned"


def test_several_calls_before_one_backward() -> None:
    def train(model: nn.Module) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(8):
            optimizer.zero_grad()
            loss = (model(_batch(step)) - model(_batch(step + 100))).square().sum()
            (loss + 0.1 * model.first.weight.square().sum()).backward()
            optimizer.step()
        return [value.detach().clone() for value in model.state_dict().values()]

    model = _optimized(TwoLayers)
    torch.testing.assert_close(train(model), train(_made(TwoLayers)))
    assert _comparison(model).num_compared > 0 and agspeed.status(model) == "tuned"


def test_inputs_that_have_a_history_and_gradients_through_them() -> None:
    def train(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(_SEED)
        generator = nn.Linear(6, 6)
        optimizer = torch.optim.SGD([*model.parameters(), *generator.parameters()], lr=0.01)
        for step in range(8):
            optimizer.zero_grad()
            model(torch.relu(generator(_batch(step)))).square().sum().backward()
            optimizer.step()
        return [value.detach().clone() for value in (*model.parameters(), *generator.parameters())]

    model = _optimized(TwoLayers)
    torch.testing.assert_close(train(model), train(_made(TwoLayers)))
    assert _comparison(model).num_compared > 0 and agspeed.status(model) == "tuned"


@pytest.mark.parametrize("in_one_backward", [True, False])
def test_gradients_of_a_penalty_enter_elsewhere_and_are_no_difference(in_one_backward: bool) -> None:
    def train(model: nn.Module) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(8):
            optimizer.zero_grad()
            x = _batch(step).requires_grad_()
            output = model(x)
            (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
            penalty = gradient.square().sum()
            if in_one_backward:
                (output.square().sum() + penalty).backward()
            else:
                penalty.backward()
                model(_batch(step)).square().sum().backward()
            optimizer.step()
        return [value.detach().clone() for value in model.parameters()]

    model = _optimized(TwoLayers)
    torch.testing.assert_close(train(model), train(_made(TwoLayers)), rtol=1e-5, atol=1e-6)
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason
    assert _comparison(model).obstacle is None, _comparison(model).state()


class Both(TwoLayers):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.first(x))
        return hidden, self.second(hidden)


def test_outputs_that_depend_on_each_other() -> None:
    model = _optimized(Both)
    _assert_equal(model, Both)
    assert _comparison(model).num_compared > 0 and _comparison(model).finding is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    def train(model: nn.Module) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(8):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = model(_batch(step)).float().square().sum()
            loss.backward()
            optimizer.step()
        return [value.detach().clone() for value in model.parameters()]

    model = _optimized(TwoLayers)
    torch.testing.assert_close(train(model), train(_made(TwoLayers)), rtol=1e-2, atol=1e-3)
    assert _comparison(model).num_compared > 0 and agspeed.status(model) == "tuned"


def test_forwards_without_a_backward_are_compared_by_their_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _optimized(TwoLayers)
    for step in range(12):
        model(_batch(step))
    assert _comparison(model).is_proven

    _spoil(monkeypatch, _scale)
    model = _optimized(TwoLayers)
    for step in range(12):
        model(_batch(step))
    assert "the output differs" in str(_comparison(model).finding)


def test_a_new_shape_trains_eagerly_until_its_graph_was_compared() -> None:
    def batch(step: int) -> torch.Tensor:
        return _batch(step)[: 5 if step < 4 else 3]

    model = _optimized(TwoLayers, dynamic=False)
    _assert_equal(model, TwoLayers, num_steps=10, batch=batch)
    assert len(_session(model).regions) == 2
    assert _comparison(model).num_compared >= 3 and agspeed.status(model) == "tuned"


def test_steps_are_compared_more_and_more_rarely() -> None:
    model = _optimized(TwoLayers)
    _train(model, num_steps=200)
    assert 4 <= _comparison(model).num_compared <= 10


@torch.compiler.assume_constant_result
def _slow_where_not_captured() -> float:
    time.sleep(0.02)
    return 1.0


def test_a_decision_of_the_database_costs_one_compared_step(tmp_path: Path) -> None:
    class Slow(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * _slow_where_not_captured()

    def trained(mode: str, num_steps: int) -> nn.Module:
        model = _made(Slow)
        agspeed.optimize(model, mode=mode, backends=["aot"], cache_dir=tmp_path)
        _train(model, num_steps=num_steps)
        return model

    assert agspeed.status(trained("max", 300)) == "tuned"
    second = trained("fast-start", 1)
    assert agspeed.report(second).to_dict()["decision"]["source"] == "cache"
    assert _comparison(second).num_compared == 1


def test_step_functions_say_that_they_are_not_compared() -> None:
    model = _made(TwoLayers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    optimized = agspeed.optimize(step, mode="deterministic", backends=["aot"])
    for number in range(6):
        optimized(_batch(number))
    assert agspeed.report(optimized).to_dict()["comparison"]["obstacle"] == "a step function changes the parameters"


def test_an_output_that_is_detached_from_another_is_captured() -> None:
    class Logged(TwoLayers):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            loss = super().forward(x).square().mean()
            return loss.detach(), loss, loss.detach() + 1

    def train(model: nn.Module) -> list[torch.Tensor]:
        optimizer, results = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(8):
            optimizer.zero_grad()
            logged, loss, shifted = model(_batch(step))
            assert not logged.requires_grad and not shifted.requires_grad and logged.data_ptr() == loss.data_ptr()
            loss.backward()
            optimizer.step()
            results += [logged.clone(), shifted.clone()]
        return [*results, *(value.detach().clone() for value in model.parameters())]

    model = _optimized(Logged, backends=["native"])
    torch.testing.assert_close(train(model), train(_made(Logged)))
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason


def test_a_recurrent_layer_between_graphs_is_no_obstacle() -> None:
    class Recurrent(TwoLayers):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.layer(torch.tanh(self.first(x)))[0]))

    model = _optimized(Recurrent)
    _assert_equal(model, Recurrent)
    assert _comparison(model).obstacle is None and 1 <= _comparison(model).num_compared <= 4


def test_hooks_of_backwards_are_left_alone() -> None:
    calls: list[int] = []

    class Hooked(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            hidden.register_hook(lambda gradient: calls.append(1))
            return self.second(torch.tanh(hidden))

    _assert_equal(_optimized(Hooked), Hooked, num_steps=6)
    assert len(calls) == 2 * 6


def test_a_rare_batch_of_another_size_is_captured_when_it_comes() -> None:
    def batch(step: int) -> torch.Tensor:
        return _batch(step)[: 3 if step % 100 == 99 else 5]

    model = _optimized(TwoLayers, dynamic=False)
    _assert_equal(model, TwoLayers, num_steps=250, batch=batch)
    assert len(_session(model).regions) == 2
    assert _comparison(model).num_compared < 20 and agspeed.status(model) == "tuned", _comparison(model).state()


def test_every_batch_of_another_size_is_captured_by_one_graph() -> None:
    def batch(step: int) -> torch.Tensor:
        return torch.randn(3 + step, 6, generator=torch.Generator().manual_seed(step))

    model = _optimized(TwoLayers)
    _assert_equal(model, TwoLayers, num_steps=40, batch=batch)
    assert len(_session(model).regions) <= 3
    assert _comparison(model).num_compared < 15 and agspeed.status(model) == "tuned", _comparison(model).state()


def test_a_part_that_fits_no_graph_behind_a_branch_is_captured() -> None:
    class Branching(TwoLayers):
        def forward(self, x: torch.Tensor, scale: int = 1) -> torch.Tensor:
            hidden = torch.tanh(self.first(x))
            if hidden.sum() > -1e9:
                hidden = hidden * 2
            return self.second(torch.tanh(hidden)) * scale

    def train(model: nn.Module) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(30):
            optimizer.zero_grad()
            model(_batch(step), 1 + (step > 12)).square().sum().backward()
            optimizer.step()
        return [value.detach().clone() for value in model.parameters()]

    model = _optimized(Branching)
    torch.testing.assert_close(train(model), train(_made(Branching)), rtol=1e-5, atol=1e-6)
    assert _comparison(model).num_compared < 15 and agspeed.status(model) == "tuned", _comparison(model).state()
