# SPDX-License-Identifier: Apache-2.0
"""Pooling and depthwise convolutions against eager, on random sizes, layouts and dtypes.

AG_TEST_SEED chooses the seed, and AG_TEST_THOROUGH=1 runs more cases.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate
from tests.python.support.pairs import first_of

pytestmark = pytest.mark.usefixtures("needs_native")
_SEED = int(os.environ.get("AG_TEST_SEED", "1"))
_COUNT = 40 if os.environ.get("AG_TEST_THOROUGH") == "1" else 3


@dataclass
class _Case:
    """One operator on random tensors: `compute` gets the tensors, and its first result is differentiated."""

    name: str
    tensors: list[Tensor]
    compute: Callable[..., tuple[Tensor, ...]]

    def step(self) -> list[Tensor]:
        leaves = [
            tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in self.tensors
        ]
        results = self.compute(*leaves)
        generator = torch.Generator().manual_seed(5)
        weights = torch.randn(results[0].shape, generator=generator).to(results[0].dtype)
        (results[0] * weights).sum().backward()
        return [*(result.detach() for result in results), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _compiled(case: _Case, seen: list[Any]) -> _Case:
    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        seen.append(candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads())))
        return seen[-1]

    torch._dynamo.reset()
    return _Case(case.name, case.tensors, torch.compile(case.compute, backend=backend, dynamic=False))


class _Random:
    """Random images and windows."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def image(self, dtype: torch.dtype) -> Tensor:
        sizes = [self.pick.choice([1, 2, 3]), self.pick.choice([8, 16, 19, 40])]
        last = self.pick.random() < 0.5
        sizes += [self.pick.choice([5, 6] if last else [5, 8, 13, 33]) for _ in range(2)]  # others stay calls
        image = torch.randn(sizes, generator=self.generator).to(dtype)
        return image.contiguous(memory_format=torch.channels_last) if last else image

    def pair(self, low: int, high: int) -> list[int]:
        return [self.pick.randint(low, high) for _ in range(2)]


def _spoil(image: Tensor, pick: random.Random) -> None:
    """Puts special values into the image: some single ones, and a plane of -inf."""
    flat = image.view(-1) if image.is_contiguous() else image.permute(0, 2, 3, 1).reshape(-1)
    for value in (math.nan, math.inf, -math.inf):
        flat[pick.randrange(len(flat))] = value
    if not image.is_contiguous():
        image.copy_(flat.view([image.shape[i] for i in (0, 2, 3, 1)]).permute(0, 3, 1, 2))
    image[-1, -1] = -math.inf


def _max_pool(source: _Random, dtype: torch.dtype) -> _Case:
    image = source.image(dtype)
    _spoil(image, source.pick)
    kernel, dilation = source.pair(1, 3), source.pair(1, 2)
    stride, ceil = source.pair(1, 3), source.pick.random() < 0.5
    padding = [source.pick.randint(0, k // 2) for k in kernel]
    options = (kernel, stride, padding, dilation, ceil)
    return _Case(
        f"max_pool2d{options} of {tuple(image.shape)} with strides {image.stride()}",
        [image],
        lambda x: functional.max_pool2d(x, *options, return_indices=True),
    )


def _avg_pool(source: _Random, dtype: torch.dtype) -> _Case:
    image = source.image(dtype)
    kernel, stride = source.pair(1, 4), source.pair(1, 3)
    padding = [source.pick.randint(0, k // 2) for k in kernel]
    options = (kernel, stride, padding, *(source.pick.random() < 0.5 for _ in range(2)), source.pick.choice([None, 3]))
    return _Case(
        f"avg_pool2d{options} of {tuple(image.shape)} with strides {image.stride()}",
        [image],
        lambda x: (functional.avg_pool2d(x, *options),),
    )


def _adaptive_avg_pool(source: _Random, dtype: torch.dtype) -> _Case:
    image = source.image(dtype)
    times = source.pair(2, 3)
    image = image.repeat_interleave(times[0], 2).repeat_interleave(times[1], 3)
    sizes = [image.shape[2] // times[0], image.shape[3] // times[1]]
    return _Case(
        f"adaptive_avg_pool2d({sizes}) of {tuple(image.shape)} with strides {image.stride()}",
        [image],
        lambda x: (functional.adaptive_avg_pool2d(x, sizes),),
    )


def _depthwise(source: _Random, dtype: torch.dtype) -> _Case:
    image = source.image(dtype)
    channels = image.shape[1]
    kernel, stride, dilation = source.pair(1, 5), source.pair(1, 2), source.pair(1, 1)
    padding = [k // 2 for k in kernel]
    weight = torch.randn([channels, 1, *kernel], generator=source.generator).to(dtype)
    bias = [torch.randn([channels], generator=source.generator).to(dtype)] if source.pick.random() < 0.5 else []
    options = (stride, padding, dilation, channels)
    return _Case(
        f"conv2d{options} with kernel {kernel} of {tuple(image.shape)} with strides {image.stride()}",
        [image, weight, *bias],
        lambda x, w, *b: (functional.conv2d(x, w, b[0] if b else None, *options),),
    )


_OPERATORS: dict[str, tuple[Callable[[_Random, torch.dtype], _Case], tuple[str, ...]]] = {
    "adaptive_avg_pool": (_adaptive_avg_pool, ("avg_pool", "avg_pool_backward")),
    "avg_pool": (_avg_pool, ("avg_pool", "avg_pool_backward")),
    "depthwise": (_depthwise, ("depthwise", "depthwise_input", "depthwise_weight")),
    "max_pool": (_max_pool, ("max_pool", "max_pool_backward")),
}


def _assert_close(name: str, got: list[Tensor], wanted: list[Tensor], exact: list[Tensor]) -> None:
    for index, (mine, eager, reference) in enumerate(zip(got, wanted, exact, strict=True)):
        assert mine.dtype == eager.dtype, f"{name}: result {index}"
        if not mine.dtype.is_floating_point:
            assert torch.equal(mine, eager), f"{name}: result {index}"
            continue
        finite = reference.isfinite()
        assert torch.equal(mine.isnan(), reference.isnan()), f"{name}: NaN of result {index}"
        assert torch.equal(mine[~finite & ~mine.isnan()].double(), reference[~finite & ~reference.isnan()].double())
        scale = reference[finite].double().square().mean().sqrt().clamp_min(1e-6)
        error, yardstick = (((t.double() - reference.double())[finite].abs().max() / scale) for t in (mine, eager))
        assert error <= max(2 * yardstick, 2e-6), f"{name}: result {index} errs by {error}, eager by {yardstick}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("operator", _OPERATORS)
def test_values_and_gradients_are_eagers(operator: str, dtype: torch.dtype) -> None:
    make, kernels = _OPERATORS[operator]
    count = _COUNT if dtype == torch.float32 else max(1, _COUNT // 4)
    for seed in range(_SEED, _SEED + count):
        case = make(_Random(seed), dtype)
        name = f"AG_TEST_SEED={seed}: {case.name}"
        seen: list[Any] = []
        got = _compiled(case, seen).step()
        exact = _Case(case.name, [tensor.double() for tensor in case.tensors], case.compute)
        _assert_close(name, got, case.step(), exact.step())
        assert len(seen) == 1, name
        for kernel in kernels:
            assert f"kernel ag_kernel_{kernel}_" in seen[0].generated, f"{name}\n{seen[0].generated}"
        assert not re.search(r"call aten\.\w*(pool2d|convolution)", seen[0].generated), f"{name}\n{seen[0].generated}"


@pytest.mark.parametrize("operator", _OPERATORS)
def test_bits_do_not_depend_on_the_number_of_threads(operator: str) -> None:
    case = _OPERATORS[operator][0](_Random(_SEED), torch.float32)
    case.tensors[0] = case.tensors[0].repeat(8, 1, 1, 1).contiguous()
    compiled = _compiled(case, [])
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(compiled.step())
    for other in results[1:]:
        for index, (a, b) in enumerate(zip(results[0], other, strict=True)):
            same = torch.equal(a.nan_to_num(), b.nan_to_num())
            assert same, f"AG_TEST_SEED={_SEED}: result {index} of {case.name}"


def test_pooling_of_nan_and_infinity_gives_eagers_bits() -> None:
    image = torch.randn(2, 16, 9, 9, generator=torch.Generator().manual_seed(_SEED))
    image[0, 0] = -math.inf
    image[0, 1, 2:4, 2:4] = math.nan
    image[1, :, 0, 0] = math.inf
    case = _Case("max_pool2d", [image], lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True))
    seen: list[Any] = []
    got, wanted = _compiled(case, seen).step(), case.step()
    assert "kernel ag_kernel_max_pool_" in seen[0].generated
    for index, (mine, eager) in enumerate(zip(got, wanted, strict=True)):
        assert mine.numpy().tobytes() == eager.numpy().tobytes(), f"result {index}"


@pytest.mark.parametrize("shape", [(0, 16, 6, 6), (2, 16, 6, 6)], ids=["empty", "expanded"])
def test_unusual_tensors(shape: tuple[int, ...]) -> None:
    """An empty batch stays a call. A gradient that is one number for all elements has strides of 0."""
    image = torch.randn(shape, generator=torch.Generator().manual_seed(_SEED))

    def step(compute: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaf = image.clone().requires_grad_()
        result = compute(leaf)
        result.sum().backward()
        assert leaf.grad is not None
        return [result.detach(), leaf.grad]

    def compute(x: Tensor) -> Tensor:
        return functional.max_pool2d(x, 2)

    seen: list[Any] = []
    got = step(_compiled(_Case("max_pool2d", [], compute), seen).compute)  # type: ignore[arg-type]
    assert seen
    for mine, eager in zip(got, step(compute), strict=True):
        assert torch.equal(mine, eager)
    assert ("call aten.max_pool2d_with_indices.default" in seen[0].generated) == (shape[0] == 0)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("stride", [1, 2])
def test_infinite_filters_and_gradients_stay_inside_the_image(stride: int, format: torch.memory_format) -> None:
    """The borders of an image take no part: infinity times a border's zero would be NaN."""
    generator = torch.Generator().manual_seed(_SEED)
    image = torch.randn([2, 24, 7, 6], generator=generator).contiguous(memory_format=format)
    weight = torch.randn([24, 1, 5, 3], generator=generator)
    image[0, 3, 2, 2] = math.inf
    for channel, tap in enumerate(((0, 0), (4, 2), (2, 1))):
        weight[channel, 0, *tap] = (math.inf, -math.inf, math.nan)[channel]
    scale = torch.ones(24, 1, 1)
    scale[5], scale[6] = math.inf, math.nan  # of the gradient

    def compute(x: Tensor, filters: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        return (functional.conv2d(x, filters, None, stride, (2, 1), groups=24) * factor,)

    seen: list[Any] = []
    case = _Case("conv2d", [image, weight, scale], compute)
    expected, found = case.step(), _compiled(case, seen).step()
    assert len(seen) == 1
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("kernel", "stride"), first_of([(5, 1), (3, 2), (3, 1), (5, 2)], 2))
def test_nan_spreads_over_the_padding_of_small_images_as_in_eager(
    kernel: int, stride: int, format: torch.memory_format
) -> None:
    """Some of eager's kernels multiply the zeros of the padding. For which sizes they do depends on the processor."""
    for size, dtype in ((2, torch.float32), (3, torch.float32), (1, torch.float64)):
        generator = torch.Generator().manual_seed(_SEED)
        image = torch.randn([2, 24, size, size], generator=generator, dtype=dtype).contiguous(memory_format=format)
        weight = torch.randn([24, 1, kernel, kernel], generator=generator, dtype=dtype)
        weight[0, 0, 0, 0], weight[1, 0, -1, 0] = math.inf, math.nan
        scale = torch.ones(24, 1, 1, dtype=dtype)
        scale[5], scale[6] = -math.inf, math.nan  # of the gradient

        def compute(x: Tensor, filters: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
            return (functional.conv2d(x, filters, None, stride, kernel // 2, groups=24) * factor,)

        seen: list[Any] = []
        case = _Case(f"{size}x{size} {dtype}", [image, weight, scale], compute)
        expected, found = case.step(), _compiled(case, seen).step()
        assert len(seen) == 1 and seen[0].native_operators > 0, case.name
        print(case.name)
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_nan_spreads_over_the_padding_of_slices_of_channels_as_in_eager() -> None:
    image = torch.randn([3, 19, 2, 2]).contiguous(memory_format=torch.channels_last)
    scale = torch.ones(3, 16, 2, 2)
    scale[0, 7, 0, 0] = math.nan  # of the gradient

    def compute(x: Tensor, filters: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        return (functional.conv2d(x[:, 2:-1], filters, None, 1, 1, groups=16) * factor,)

    seen: list[Any] = []
    case = _Case("slice", [image, torch.randn(16, 1, 3, 3), scale], compute)
    expected, found = case.step(), _compiled(case, seen).step()
    assert len(seen) == 1 and seen[0].native_operators > 0
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_zeros_around_an_image_are_part_of_the_convolution(format: torch.memory_format) -> None:
    """For example the padding of models that were ported from TensorFlow, which differs from side to side."""
    generator = torch.Generator().manual_seed(_SEED)
    image = torch.randn([2, 24, 6, 7], generator=generator).contiguous(memory_format=format)
    image[0, 3, 0, 0] = math.inf
    weight = torch.randn([24, 1, 3, 3], generator=generator)
    weight[0, 0, 0, 0], weight[1, 0, -1, 0] = math.inf, math.nan

    def compute(x: Tensor, filters: Tensor) -> tuple[Tensor, ...]:
        return (functional.conv2d(functional.pad(x, (0, 1, 2, 1)), filters, None, 2, groups=24),)

    seen: list[Any] = []
    case = _Case("padded", [image, weight], compute)
    found = _compiled(case, seen).compute(image, weight)
    assert len(seen) == 1
    torch.testing.assert_close(found, compute(image, weight), equal_nan=True)
    expected, found = case.step(), _compiled(case, seen).step()
    assert len(seen) == 2 and seen[1].native_operators > 0
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_one_number_stands_for_both_sides_of_the_padding() -> None:
    image, weight = torch.randn([2, 24, 2, 2], dtype=torch.float64), torch.randn([24, 1, 5, 5], dtype=torch.float64)
    weight[0, 0, 0, 0] = math.inf

    def compute(x: Tensor, filters: Tensor) -> tuple[Tensor, ...]:
        return (torch.ops.aten.convolution.default(x, filters, None, [1], [2], [1], False, [0], 24),)

    seen: list[Any] = []
    case = _Case("convolution", [image, weight], compute)
    expected, found = case.step(), _compiled(case, seen).step()
    assert len(seen) == 1 and seen[0].native_operators > 0
    torch.testing.assert_close(found, expected, equal_nan=True)
