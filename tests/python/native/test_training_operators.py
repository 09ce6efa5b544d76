# SPDX-License-Identifier: Apache-2.0
"""Operators of training that the compiler decomposes: values, gradients and random numbers compared with eager."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate


def _step(model: nn.Module, x: Tensor, backend: Any) -> list[Tensor]:
    """Returns output, gradients and buffers after one forward and backward with a fixed seed."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    run: Callable[[Tensor], Tensor] = torch.compile(model, backend=backend, dynamic=False) if backend else model
    x = x.clone().requires_grad_()
    y = run(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    (y * (1 + weights.sin())).sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]


def _native(seen: list[Any]) -> Callable[[Any, list[Any]], Any]:
    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        runner = candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads()))
        seen.append(runner)
        return runner

    return backend


def _compare(make: Callable[[], nn.Module], x: Tensor) -> str:
    """Asserts that native errors against float64 stay within a small factor of eager's, or of float32's rounding.

    Returns the native program as text.
    """
    if reason := candidate("native").unavailable():
        pytest.skip(f"the native backend cannot run: {reason}")

    def fresh(dtype: torch.dtype) -> nn.Module:
        torch.manual_seed(1)
        return make().to(dtype)

    seen: list[Any] = []
    native = _step(fresh(torch.float32), x, _native(seen))
    eager = _step(fresh(torch.float32), x, None)
    exact = _step(fresh(torch.float64), x.double(), None)
    assert seen
    for index, (got, wanted, reference) in enumerate(zip(native, eager, exact, strict=True)):
        scale = reference.double().square().mean().sqrt().clamp_min(1e-6)
        error, yardstick = ((t.double() - reference).square().mean().sqrt() / scale for t in (got, wanted))
        assert error <= max(4 * yardstick, 1e-6), f"result {index} of shape {tuple(got.shape)}: {error} {yardstick}"
    text: str = seen[0].generated
    return text


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(11)


@pytest.mark.parametrize(
    "shape",
    [
        *[(4, 8, 6, 6), (2, 3, 33, 17), (70, 40, 4, 4), (3, 5, 40), (3, 1, 40), (5, 1, 9, 7)],
        *[(64, 128), (5, 19), (700, 40), (16, 24, 2, 2), (9, 40, 1, 1), (130, 17, 3, 3), (6, 33, 5)],
    ],
)
def test_batch_norm_with_relu(shape: tuple[int, ...]) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(shape[1]) if len(shape) == 4 else nn.BatchNorm1d(shape[1])
            nn.init.normal_(self.norm.weight)
            nn.init.normal_(self.norm.bias)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.relu(self.norm(x * 2 + 5))

    program = _compare(Block, torch.randn(shape))
    assert not re.search(r"call aten\.\w*batch_norm", program), program


@pytest.mark.parametrize("shape", [(4, 16, 6, 6), (3, 19, 33, 17), (70, 40, 4, 4), (1, 24, 9, 7), (2, 130, 1, 5)])
@pytest.mark.parametrize("offset", [0, 1e4])
def test_batch_norm_of_channels_last_images(shape: tuple[int, ...], offset: float) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(shape[1])
            nn.init.normal_(self.norm.weight)
            nn.init.normal_(self.norm.bias)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.relu(self.norm(x * 2 + offset))

    program = _compare(Block, torch.randn(shape).contiguous(memory_format=torch.channels_last))
    assert not re.search(r"call aten\.\w*batch_norm", program), program


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
def test_batch_norm_without_parameters_or_running_statistics(
    affine: bool, tracks: bool, format: torch.memory_format
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Tanh(), nn.BatchNorm2d(24, affine=affine, track_running_stats=tracks), nn.SiLU())

    program = _compare(make, torch.randn(6, 24, 5, 7).contiguous(memory_format=format))
    assert not re.search(r"call aten\.\w*batch_norm", program), program


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(33).eval(), nn.GroupNorm(3, 33), nn.LayerNorm([5, 13])])
@pytest.mark.parametrize("trains", [["weight", "bias"], ["bias"]])
def test_a_norm_trains_on_data_that_needs_no_gradient(norm: nn.Module, trains: list[str]) -> None:
    """Operators that stay calls return no tensor for a gradient that is not asked for."""
    for name, parameter in norm.named_parameters():
        parameter.requires_grad_(name in trains)
    data = torch.randn(4, 33, 5, 13)
    seen: list[Any] = []

    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        seen.append(candidate("native").compile(gm, inputs, CompileOptions(num_threads=1)))
        return seen[-1]

    gradients = []
    for compute in (norm, torch.compile(norm, backend=backend)):
        compute(data).pow(3).sum().backward()
        gradients.append({name: dict(norm.named_parameters())[name].grad.clone() for name in trains})
        norm.zero_grad()
    assert len(seen) == 1
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-3)


def test_several_batch_norms_in_one_graph() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(24), nn.ReLU(), nn.BatchNorm2d(24), nn.Flatten(), nn.BatchNorm1d(96))

    program = _compare(make, torch.randn(9, 24, 2, 2))
    assert not re.search(r"call aten\.\w*batch_norm", program), program


@pytest.mark.parametrize("shape", [(8, 16, 8, 8), (3, 5, 40), (300, 24), (90, 24, 2, 2)])
def test_batch_norm_far_from_zero(shape: tuple[int, ...]) -> None:
    norm = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    _compare(lambda: norm(shape[1]), torch.randn(shape) + 1e5)


@pytest.mark.parametrize("shape", [(6, 32), (300, 48), (5, 90, 130), (1, 7)])
def test_layer_norm_and_bias_gradients(shape: tuple[int, ...]) -> None:
    width = shape[-1]

    def make() -> nn.Module:
        head = nn.Linear(24, width)
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 24), nn.GELU(), head, nn.LayerNorm(width))

    _compare(make, torch.randn(shape))


@pytest.mark.parametrize(
    ("groups", "shape"), [(4, (3, 8, 6, 6)), (2, (2, 6, 40)), (1, (5, 3, 9, 7)), (6, (2, 6, 17, 5))]
)
@pytest.mark.parametrize("offset", [0, 1000])
def test_group_norm_with_silu(groups: int, shape: tuple[int, ...], offset: float) -> None:
    def make() -> nn.Module:
        norm = nn.GroupNorm(groups, shape[1])
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        return nn.Sequential(norm, nn.SiLU())

    _compare(make, torch.randn(shape) + offset)


class _Mixing(nn.Module):
    """Has constants: one that only the forward uses, one that the backward needs, and one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        table = torch.tensor([0.5, -1.25, 2.0, 3.5], dtype=x.dtype)
        order = torch.tensor([2, 0, 3, 1])
        return torch.tanh(x[:, order] * table * self.scale) + table


def test_constants_of_the_graph() -> None:
    _compare(_Mixing, torch.randn(6, 4))


@pytest.mark.parametrize("width", [48, 1000])
def test_layer_norm_of_constant_rows_is_zero(width: int) -> None:
    rows = torch.linspace(-70, 3e4, 50)[:, None].expand(50, width).contiguous()
    _compare(lambda: nn.LayerNorm(width), rows + torch.randn(50, width))
    seen: list[Any] = []
    assert _step(nn.LayerNorm(width), rows, _native(seen))[0].abs().max() == 0
    assert seen


class _Spread(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean = torch.var_mean(x * 2, dim=-1, correction=0)[1]
        return x.var(-1) + x.std() + mean


@pytest.mark.parametrize("shape", [(9, 20), (3, 700)])
def test_variance_and_its_gradient(shape: tuple[int, ...]) -> None:
    _compare(_Spread, torch.randn(shape) + 1000)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(9, 0), (9, 1)])
def test_variance_without_degrees_of_freedom_is_eagers(shape: tuple[int, ...]) -> None:
    if reason := candidate("native").unavailable():
        pytest.skip(f"the native backend cannot run: {reason}")
    seen: list[Any] = []
    native, eager = _step(_Spread(), torch.ones(shape), _native(seen)), _step(_Spread(), torch.ones(shape), None)
    assert seen
    torch.testing.assert_close(native, eager, equal_nan=True)


def test_long_sums_stay_accurate() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.slope = nn.Parameter(torch.ones(3, 1, 1)), nn.Parameter(torch.ones(3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * torch.tanh(x * self.slope)

    _compare(Scale, torch.rand(3, 600, 900))


def test_softmax_of_masked_rows_is_zero() -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scores = x.masked_fill(x.detach().abs() > 0.5, float("-inf"))
            return torch.ops.aten._safe_softmax(scores, -1)

    x = torch.rand(6, 40)
    x[2] = 0.75
    _compare(Attention, x)


@pytest.mark.parametrize("threads", [1, 2])
def test_dropout_draws_what_eager_draws(threads: int) -> None:
    if reason := candidate("native").unavailable():
        pytest.skip(f"the native backend cannot run: {reason}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = nn.Sequential(nn.Dropout(0.3), nn.Tanh(), nn.Dropout(0.1))
        seen: list[Any] = []
        x = torch.randn(37, 53)
        native, eager = _step(model, x, _native(seen)), _step(model, x, None)
    finally:
        torch.set_num_threads(before)
    assert seen
    for got, wanted in zip(native, eager, strict=True):
        assert torch.equal(got == 0, wanted == 0)
        torch.testing.assert_close(got, wanted, rtol=2e-6, atol=1e-6)


def test_dropout_of_everything_draws_nothing() -> None:
    if reason := candidate("native").unavailable():
        pytest.skip(f"the native backend cannot run: {reason}")
    model = nn.Sequential(nn.Dropout(1.0), nn.Tanh(), nn.Dropout(0.3))
    x = torch.randn(37, 53)
    seen: list[Any] = []
    results = [[*_step(model, x, backend), torch.rand(5)] for backend in (_native(seen), None)]
    assert seen
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_sums_are_the_same_for_every_number_of_threads() -> None:
    if reason := candidate("native").unavailable():
        pytest.skip(f"the native backend cannot run: {reason}")
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            torch.manual_seed(2)
            model = nn.Sequential(nn.LayerNorm(256), nn.Tanh())
            results.append(_step(model, functional.pad(torch.randn(2000, 200), (0, 56)), _native([])))
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_division_that_rounds_gives_eagers_bits(dtype: torch.dtype, mode: str) -> None:
    """Eager rounds a quotient of 17.98 to 18 before it drops the fraction."""
    if reason := candidate("native").unavailable():
        pytest.skip(f"the native backend cannot run: {reason}")

    class Divided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=dtype))

        def forward(self, x: Tensor) -> Tensor:
            return torch.div(x * self.scale, x.detach().flip(0).abs() + 0.5, rounding_mode=mode) * self.scale

    x, seen = (20 * torch.randn(4096)).to(dtype), []
    native, eager = _step(Divided(), x, _native(seen)), _step(Divided(), x, None)
    assert seen and torch.equal(native[0], eager[0])
