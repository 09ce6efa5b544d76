# SPDX-License-Identifier: Apache-2.0
"""1x1 convolutions as products against eager, on random sizes, layouts and dtypes, and the ones that stay calls.

AG_TEST_SEED chooses the seed, and AG_TEST_THOROUGH=1 runs more cases.
"""

from __future__ import annotations

import copy
import math
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate
from agspeed.backends.numerics import wide_products

pytestmark = pytest.mark.usefixtures("needs_native")
_SEED = int(os.environ.get("AG_TEST_SEED", "1"))
_COUNT = 60 if os.environ.get("AG_TEST_THOROUGH") == "1" else 6
_CONVOLUTION = re.compile(r"call aten\.\w*convolution")
_PRODUCT = re.compile(r"call aten\.b?mm\b.*a call because it is a product of a 1x1 convolution")

Compute = Callable[..., Tensor]


def _compiled(compute: Any, seen: list[Any], *, dynamic: bool = False) -> Any:
    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        seen.append(candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads())))
        return seen[-1]

    torch._dynamo.reset()
    return torch.compile(compute, backend=backend, dynamic=dynamic)


def _step(compute: Compute, tensors: list[Tensor]) -> list[Tensor]:
    """Returns the result and the gradients of all tensors."""
    leaves = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in tensors]
    result = compute(*leaves)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(5)).to(result.dtype)
    (result * weights).sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _steps(tensor: Tensor) -> list[int]:
    """The strides of dimensions with more than one element. Others have no meaning."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _assert_close(name: str, got: list[Tensor], wanted: list[Tensor], exact: list[Tensor]) -> None:
    for index, (mine, eager, reference) in enumerate(zip(got, wanted, exact, strict=True)):
        assert mine.dtype == eager.dtype, f"{name}: result {index}"
        assert _steps(mine) == _steps(eager), f"{name}: result {index} has strides {mine.stride()}"
        finite = reference.isfinite()
        assert torch.equal(mine.isnan(), eager.isnan()), f"{name}: NaN of result {index}"
        assert torch.equal(mine[eager.isinf()], eager[eager.isinf()]), f"{name}: infinity of result {index}"
        scale = reference[finite].double().square().mean().sqrt().clamp_min(1e-6)
        error, yardstick = (((t.double() - reference.double())[finite].abs().max() / scale) for t in (mine, eager))
        least = 1e-13 if mine.dtype == torch.float64 else 4e-6
        assert error <= max(2 * yardstick, least), f"{name}: result {index} errs by {error}, eager by {yardstick}"


@dataclass
class _Case:
    name: str
    compute: Compute
    tensors: list[Tensor]


def _random_case(seed: int, dtype: torch.dtype) -> _Case:
    """A convolution of images of one to three dimensions, contiguous or channels-last, with or without a bias. Its
    image is a product of another kernel, and another kernel reads its result."""
    pick, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rank = pick.choice([1, 2, 2, 2, 3])
    pixels = [pick.choice({1: [1, 7, 40], 2: [1, 2, 3, 4, 5, 8, 11], 3: [1, 2, 4]}[rank]) for _ in range(rank)]
    sizes = [pick.choice([1, 2, 5, 17]), pick.choice([1, 3, 8, 16, 19, 40])]
    outputs = pick.choice([1, 2, 8, 24, 33])
    image = torch.randn([*sizes, *pixels], generator=generator).to(dtype)
    if rank == 2 and pick.random() < 0.4:
        image = image.contiguous(memory_format=torch.channels_last)
    weight = torch.randn([outputs, sizes[1], *[1] * rank], generator=generator).to(dtype)
    tensors = [image, weight]
    if pick.random() < 0.5:
        tensors.append(torch.randn([outputs], generator=generator).to(dtype))
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]

    def compute(x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
        return convolve(x.sigmoid(), w, *bias).sin()

    name = f"AG_TEST_SEED={seed}: {tuple(image.shape)} with strides {image.stride()}, {len(tensors) - 2} bias"
    return _Case(f"{name}, {outputs} outputs", compute, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_values_and_gradients_are_eagers(dtype: torch.dtype) -> None:
    for seed in range(_SEED, _SEED + _COUNT):
        case = _random_case(seed, dtype)
        seen: list[Any] = []
        got = _step(_compiled(case.compute, seen), case.tensors)
        exact = _step(case.compute, [tensor.double() for tensor in case.tensors])
        _assert_close(case.name, got, _step(case.compute, case.tensors), exact)
        assert len(seen) == 1, case.name
        assert _PRODUCT.search(seen[0].generated), f"{case.name}\n{seen[0].generated}"
        assert not _CONVOLUTION.search(seen[0].generated), f"{case.name}\n{seen[0].generated}"


@pytest.mark.parametrize("pixels", [1, 3, 12], ids=["points", "rows", "images"])
def test_a_gradient_is_computed_for_each_set_of_leaves(pixels: int) -> None:
    generator = torch.Generator().manual_seed(_SEED)
    tensors = [torch.randn(size, generator=generator) for size in ([6, 16, pixels, pixels], [8, 16, 1, 1], [8])]

    def compute(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.conv2d(x, w, b).tanh()

    for wanted in range(1, 8):

        def step(compute: Compute, wanted: int = wanted) -> list[Tensor]:
            leaves = [t.clone().requires_grad_(bool(wanted >> i & 1)) for i, t in enumerate(tensors)]
            result = compute(*leaves)
            result.square().sum().backward()
            return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

        seen: list[Any] = []
        torch.testing.assert_close(step(_compiled(compute, seen)), step(compute), rtol=1e-4, atol=1e-4)
        assert len(seen) == 1
        assert not _CONVOLUTION.search(seen[0].generated), f"leaves {wanted:03b}\n{seen[0].generated}"


@pytest.mark.parametrize("pixels", [1, 3, 12], ids=["points", "rows", "images"])
def test_nan_and_infinity_are_where_eagers_are(pixels: int) -> None:
    generator = torch.Generator().manual_seed(_SEED)
    image, weight, bias, factor = (
        torch.randn(size, generator=generator) for size in ([4, 16, pixels, pixels], [24, 16, 1, 1], [24], [24, 1, 1])
    )
    image[0, 1, 0, 0], image[1, 2, -1, -1], image[2, 3, 0, -1] = math.nan, math.inf, -math.inf
    weight[3, 4], weight[5, 6], bias[7] = math.inf, math.nan, -math.inf
    factor[8] = math.inf  # of the gradient

    def compute(x: Tensor, w: Tensor, b: Tensor, f: Tensor) -> Tensor:
        return functional.conv2d(x, w, b) * f

    seen: list[Any] = []
    tensors = [image, weight, bias, factor]
    got, wanted = _step(_compiled(compute, seen), tensors), _step(compute, tensors)
    torch.testing.assert_close(got, wanted, equal_nan=True, rtol=1e-4, atol=1e-4)
    assert len(seen) == 1
    assert not _CONVOLUTION.search(seen[0].generated), seen[0].generated


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pixels", [1, 3, 12], ids=["points", "rows", "images"])
def test_steps_repeat_their_bits(pixels: int, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(_SEED)
    sizes: tuple[list[int], ...] = ([32, 24, pixels, pixels], [40, 24, 1, 1], [40])
    tensors = [torch.randn(size, generator=generator) for size in sizes]
    seen: list[Any] = []
    compiled = _compiled(lambda x, w, b: functional.conv2d(x, w, b).tanh(), seen)
    first = _step(compiled, tensors)
    for _ in range(3):
        for index, (a, b) in enumerate(zip(first, _step(compiled, tensors), strict=True)):
            assert torch.equal(a, b), f"result {index}"
    assert len(seen) == 1
    assert not _CONVOLUTION.search(seen[0].generated), seen[0].generated


@pytest.mark.parametrize("pixels", [1, 3, 12], ids=["points", "rows", "images"])
def test_the_batch_may_change(pixels: int) -> None:
    generator = torch.Generator().manual_seed(_SEED)
    weight, bias = torch.randn([16, 8, 1, 1], generator=generator), torch.randn([16], generator=generator)

    def compute(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.conv2d(x.sigmoid(), w, b).sin()

    seen: list[Any] = []
    compiled = _compiled(compute, seen, dynamic=True)
    for batch in (5, 3, 12):
        image = torch.randn([batch, 8, pixels, pixels], generator=generator)
        tensors = [image, weight, bias]
        if batch == 5:
            torch._dynamo.mark_dynamic(image, 0, min=2)
        exact = _step(compute, [tensor.double() for tensor in tensors])
        _assert_close(f"batch {batch}", _step(compiled, tensors), _step(compute, tensors), exact)
    assert len(seen) == 1, "another batch compiled again"
    assert not _CONVOLUTION.search(seen[0].generated), seen[0].generated


def test_an_expanded_gradient_and_a_sliced_image() -> None:
    """The gradient of a mean has strides of 0, and a part of the channels has gaps between its images."""
    generator = torch.Generator().manual_seed(_SEED)
    tensors = [torch.randn(size, generator=generator) for size in ([4, 24, 8, 8], [8, 16, 1, 1])]

    def step(compute: Compute) -> list[Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        result = compute(*leaves)
        result.sum().backward()
        return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def compute(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x[:, 4:20], w).mean((2, 3))

    seen: list[Any] = []
    torch.testing.assert_close(step(_compiled(compute, seen)), step(compute))
    assert len(seen) == 1
    assert not _CONVOLUTION.search(seen[0].generated), seen[0].generated


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_chain_with_batch_norm_trains_as_eager(channels_last: bool) -> None:
    torch.manual_seed(_SEED)
    format = torch.channels_last if channels_last else torch.contiguous_format
    chain = nn.Sequential(
        nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 1), nn.BatchNorm2d(8)
    ).to(memory_format=format)
    twin, seen = copy.deepcopy(chain), list[Any]()
    compiled = _compiled(twin, seen)
    for step in range(3):
        image = torch.randn(8, 16, 6, 6).contiguous(memory_format=format)
        results = []
        for module in (chain, compiled):
            module.zero_grad()
            result = module(image)
            result.square().mean().backward()
            results.append(result.detach())
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5, msg=f"step {step}")
        for (name, a), b in zip(twin.named_parameters(), chain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5, msg=f"gradient of {name}, step {step}")
    torch.testing.assert_close(twin.state_dict(), chain.state_dict(), rtol=1e-4, atol=1e-5)
    assert len(seen) == 1
    assert not _CONVOLUTION.search(seen[0].generated), seen[0].generated


_CALLS: dict[str, tuple[list[int], list[int], dict[str, Any], torch.dtype, str]] = {
    "bfloat16": ([4, 16, 8, 8], [8, 16, 1, 1], {}, torch.bfloat16, "its tensors are not all f32 or all f64"),
    "empty": ([0, 16, 8, 8], [8, 16, 1, 1], {}, torch.float32, "a tensor is empty"),
    "grouped": ([4, 16, 8, 8], [8, 4, 1, 1], {"groups": 4}, torch.float32, "it has several channels in a group"),
    "large filter": ([4, 16, 8, 8], [8, 16, 3, 3], {}, torch.float32, "it is neither depthwise nor 1x1"),
    "many channels": ([64, 512, 5, 5], [512, 512, 1, 1], {}, torch.float32, "ATen's 1x1 convolution is as fast"),
    "padded": ([4, 16, 8, 8], [8, 16, 1, 1], {"padding": 1}, torch.float32, "it is neither depthwise nor 1x1"),
    "strided": ([4, 16, 8, 8], [8, 16, 1, 1], {"stride": 2}, torch.float32, "it is neither depthwise nor 1x1"),
}


@pytest.mark.parametrize("name", _CALLS)
def test_other_convolutions_stay_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(wide_products, "slow_types", frozenset)  # as on a CPU with fast 16-bit products
    sizes, filters, options, dtype, reason = _CALLS[name]
    generator = torch.Generator().manual_seed(_SEED)
    tensors = [torch.randn(size, generator=generator).to(dtype) for size in (sizes, filters)]

    def compute(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, **options).tanh()

    seen: list[Any] = []
    got = _step(_compiled(compute, seen), tensors)
    torch.testing.assert_close(got, _step(compute, tensors), rtol=1e-3, atol=1e-3)
    assert len(seen) == 1
    calls = [line for line in seen[0].generated.splitlines() if _CONVOLUTION.search(line)]
    assert len(calls) == 2, seen[0].generated
    assert all(reason in line for line in calls), calls
