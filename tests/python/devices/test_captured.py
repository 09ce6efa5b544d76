# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs without a GPU. A fake graph replays its work into the same memory, as a real one does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from agspeed.backends import captured as captured_module
from agspeed.backends import cudagraph
from agspeed.backends.aot import trace_for_aten
from agspeed.backends.captured import CapturedDirection
from agspeed.backends.cudagraph import CudaGraph
from agspeed.backends.joint import fake_inputs
from agspeed.backends.region import make_runner
from agspeed.errors import UnsupportedError
from agspeed.tuning.gate.check import Policy, check


class FakeGraph:
    held_bytes = 4096

    def __init__(self, maker: FakeMaker, work: Callable[[], Sequence[Any]], results: Sequence[Any]) -> None:
        self._maker, self._work, self._results = maker, work, results

    def replay(self) -> None:
        self._maker.num_replays += 1
        for mine, new in zip(self._results, self._work(), strict=True):
            if isinstance(mine, torch.Tensor) and mine.data_ptr() != new.data_ptr():
                mine.copy_(new)


class FakeMaker:
    """See `agspeed.backends.captured.GraphMaker`."""

    def __init__(self) -> None:
        self.num_captures = self.num_replays = 0
        self.capturing = False
        self.error: RuntimeError | None = None

    def is_capturing(self) -> bool:
        return self.capturing

    def capture(self, work: Callable[[], Sequence[Any]]) -> tuple[FakeGraph, Sequence[Any]]:
        if self.error is not None:
            raise self.error
        self.num_captures += 1
        state = torch.get_rng_state()
        results = work()
        torch.set_rng_state(state)
        return FakeGraph(self, work, results), results


def parameter(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor if isinstance(tensor, nn.Parameter) else None


def boxed(function: Callable[..., Sequence[Any]]) -> Any:
    def run(inputs: list[Any]) -> Sequence[Any]:
        values = list(inputs)
        inputs.clear()
        return function(*values)

    return run


def test_results_of_one_call_outlive_the_next() -> None:
    maker = FakeMaker()
    direction = CapturedDirection(boxed(lambda w, x: [w * x]), maker, static=parameter)
    weight = nn.Parameter(torch.full((3,), 2.0))
    kept = [direction([weight, torch.full((3,), float(k))])[0] for k in range(5)]
    assert [value[0].item() for value in kept] == [0, 2, 4, 6, 8]
    assert (maker.num_captures, maker.num_replays) == (1, 5)


def test_a_parameter_that_moved_is_captured_anew_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_module, "_MAX_CAPTURES", 4)
    maker = FakeMaker()
    direction = CapturedDirection(boxed(lambda w, x: [w + x]), maker, static=parameter)
    alive = []
    for k in range(10):
        weight = nn.Parameter(torch.full((3,), float(k)))
        alive.append(weight)
        for x in (1.0, 2.0):
            assert direction([weight, torch.full((3,), x)])[0][0].item() == k + x, k
    assert maker.num_captures == 4


def test_each_set_of_symbolic_sizes_has_a_graph_of_its_own() -> None:
    maker = FakeMaker()
    direction = CapturedDirection(boxed(lambda n, x: [x.sum() * n]), maker, static=parameter)
    for _ in range(2):
        for n in (2, 3, 5):
            assert direction([n, torch.ones(n)])[0].item() == n * n
    assert maker.num_captures == 3
    for n in range(10, 20):
        assert direction([n, torch.ones(n)])[0].item() == n * n
    assert maker.num_captures == 4


def test_inside_another_capture_the_code_runs_without_a_graph() -> None:
    maker = FakeMaker()
    direction = CapturedDirection(boxed(lambda x: [x * 2]), maker, static=parameter)
    maker.capturing = True
    assert direction([torch.ones(2)])[0].tolist() == [2, 2]
    assert maker.num_captures == 0


def test_a_result_that_is_an_input_is_the_caller_s_own() -> None:
    direction = CapturedDirection(boxed(lambda x: [x, x * 2]), FakeMaker(), static=parameter)
    x = torch.ones(2)
    first, second = direction([x])
    assert first is x and second.tolist() == [2, 2]


def test_work_that_cannot_be_captured_at_all_raises_and_later_failures_do_without() -> None:
    maker = FakeMaker()
    maker.error = RuntimeError("operation not permitted when stream is capturing")
    direction = CapturedDirection(boxed(lambda x: [x * 2]), maker, static=parameter)
    with pytest.raises(RuntimeError, match="its CUDA graph cannot be captured: operation not permitted"):
        direction([torch.ones(2)])
    maker.error = None
    moving = CapturedDirection(boxed(lambda w: [w * 2]), maker, static=parameter)
    weight = nn.Parameter(torch.ones(2))
    moving([weight])
    maker.error = torch.OutOfMemoryError("CUDA out of memory")
    other = nn.Parameter(torch.full((2,), 3.0))
    assert moving([other])[0].tolist() == [6, 6]


# --- whole regions ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.dropout(self.norm(self.first(x).relu()), 0.3))


def region(model: nn.Module, example: torch.Tensor, maker: FakeMaker) -> tuple[Any, Any, list[Any]]:
    """Returns (the graph, its runner with graphs in both directions, inputs)."""
    found: list[Any] = []

    def backend(gm: Any, inputs: list[Any]) -> Any:
        found.extend([gm, list(inputs)])
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(example)
    gm, inputs = found
    joint = trace_for_aten(gm, fake_inputs(gm))
    return gm, make_runner(cudagraph.captured(joint, maker), gm), inputs


@pytest.fixture
def net() -> Net:
    torch.manual_seed(3)
    return Net()


def test_the_gate_accepts_a_region_of_graphs(net: Net) -> None:
    maker = FakeMaker()
    gm, runner, inputs = region(net, torch.randn(5, 6), maker)
    for numerics in ("standard", "exact"):
        verdict = check(runner, gm, inputs, Policy(numerics))
        assert verdict.accepted, verdict.reason
    assert maker.num_replays >= 8


def test_training_with_graphs_gives_eager_s_bits(net: Net) -> None:
    maker = FakeMaker()
    gm, runner, inputs = region(net, torch.randn(5, 6), maker)
    data = [torch.randn(5, 6) for _ in range(6)]

    at = next(i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.shape == (5, 6))
    parameters = [value for value in inputs if isinstance(value, nn.Parameter)]
    buffers = [v for v in inputs if isinstance(v, torch.Tensor) and not isinstance(v, nn.Parameter) and v.ndim < 2]

    def gradients(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(11)
        before, kept = [value.clone() for value in buffers], []
        for x in data:
            loss = run(*inputs[:at], x, *inputs[at + 1 :])[0].square().sum()
            kept += [loss.detach(), *torch.autograd.grad(loss, parameters)]
        kept += [value.clone() for value in buffers]
        with torch.no_grad():
            for value, old in zip(buffers, before, strict=True):
                value.copy_(old)
        return kept

    assert all(torch.equal(a, b) for a, b in zip(gradients(gm), gradients(runner), strict=True))
    assert maker.num_captures == 2 and maker.num_replays == 12


def test_two_forwards_before_their_backwards(net: Net) -> None:
    net.norm = nn.Identity()  # type: ignore[assignment]
    net.eval()
    maker = FakeMaker()
    gm, runner, inputs = region(net, torch.randn(5, 6), maker)
    at = next(i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.shape == (5, 6))
    parameters = [value for value in inputs if isinstance(value, nn.Parameter)]

    def run(which: Any) -> list[torch.Tensor]:
        torch.manual_seed(5)
        losses = []
        for k in range(3):
            arguments = list(inputs)
            arguments[at] = torch.full((5, 6), 0.1 * (k + 1))
            losses.append(which(*arguments)[0].square().sum())
        return [gradient for loss in losses for gradient in torch.autograd.grad(loss, parameters)]

    assert all(torch.equal(a, b) for a, b in zip(run(gm), run(runner), strict=True))
    gc.collect()
    before = maker.num_replays
    assert all(torch.equal(a, b) for a, b in zip(run(gm)[:1], run(runner)[:1], strict=True))
    assert maker.num_replays > before, "graphs are used again once their backwards are through"


def test_a_retained_graph_may_run_backward_twice(net: Net) -> None:
    maker = FakeMaker()
    _, runner, inputs = region(net, torch.randn(5, 6), maker)
    parameters = [value for value in inputs if isinstance(value, nn.Parameter)]
    loss = runner(*inputs)[0].square().sum()
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    runner(*inputs)  # would overwrite values that the first call saved
    second = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_region_that_waits_for_the_device_names_the_operator() -> None:
    class Waits(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[torch.nonzero(x[:, 0] > -9)[:, 0]]

    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        with pytest.raises(UnsupportedError, match=r"nonzero.* waits for the device"):
            region(Waits(6, 6), torch.randn(5, 6), FakeMaker())
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False


def test_the_candidates_are_for_gpus_alone() -> None:
    assert CudaGraph.devices == ("cuda",) and cudagraph.InductorCudaGraphs.devices == ("cuda",)
