# SPDX-License-Identifier: Apache-2.0
"""Nearest and bilinear resampling against eager, on random sizes, layouts and dtypes.

AG_TEST_SEED chooses the first seed, and AG_TEST_THOROUGH=1 runs more cases.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate
from agspeed.torch_compat.operators import whole_resampling
from benchmarks.workloads import unet

pytestmark = pytest.mark.usefixtures("needs_native")
_SEED = int(os.environ.get("AG_TEST_SEED", "1"))
_COUNT = 60 if os.environ.get("AG_TEST_THOROUGH") == "1" else 6
_LAST = torch.channels_last


def _compiled(compute: Callable[..., Any], dynamic: bool | None = False) -> tuple[Callable[..., Any], list[Any]]:
    """The function with each graph compiled by `native`, and the list that gets the runners."""
    runners: list[Any] = []

    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        runners.append(candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads())))
        return runners[-1]

    torch._dynamo.reset()
    return torch.compile(compute, backend=backend, dynamic=dynamic), runners


def _step(resample: Callable[[Tensor], Tensor], image: Tensor, gradient: Tensor) -> list[Tensor]:
    leaf = image.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    result = resample(leaf)
    result.backward(gradient)
    assert leaf.grad is not None
    return [result.detach(), leaf.grad]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether both are equal in every bit, except that any NaN equals any other NaN."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(nan=0), b.nan_to_num(nan=0))


class _Case:
    """A random image with a random size of the result. Layouts that ATen computes as fast are left out."""

    def __init__(self, seed: int, mode: str, dtype: torch.dtype) -> None:
        pick = random.Random(seed)
        self.dtype = dtype
        generator = torch.Generator().manual_seed(seed)
        sizes = [pick.choice([1, 2, 3]), pick.choice([8, 16]), *(pick.choice([1, 5, 8, 13, 33]) for _ in range(2))]
        self.options: dict[str, Any] = {"mode": mode.removesuffix("-aligned")}
        if mode.startswith("bilinear"):
            self.options["align_corners"] = mode.endswith("aligned")
        if pick.random() < 0.5:
            self.options["size"] = [pick.randint(1, 90) for _ in range(2)]
        else:
            scales = [scale for scale in (0.5, 0.7, 1.5, 2, 2.0, 3, [2.0, 3.0]) if min(sizes[2:]) > 1 or scale != 0.5]
            self.options["scale_factor"] = pick.choice(scales) if min(sizes[2:]) > 1 else 2
            self.options["recompute_scale_factor"] = pick.choice([None, True])
        self.image = torch.randn(sizes, generator=generator).to(dtype)
        if pick.random() < 0.5:
            self.image = self.image.contiguous(memory_format=_LAST)
        self.gradient = torch.randn(self(self.image).shape, generator=generator).to(dtype)
        if pick.random() < 0.5:
            self.gradient = self.gradient.contiguous(memory_format=_LAST)

    def __call__(self, image: Tensor) -> Tensor:
        return functional.interpolate(image, **self.options)

    def __str__(self) -> str:
        return f"{self.options} of {self.dtype} {tuple(self.image.shape)} with strides {self.image.stride()}"


_MODES = ("nearest", "nearest-exact", "bilinear", "bilinear-aligned")


def _assert_native(runners: list[Any], name: str) -> None:
    assert len(runners) == 1, name
    for kernel in ("resample", "resample_backward"):
        assert f"kernel ag_kernel_{kernel}_" in runners[0].generated, f"{name}\n{runners[0].generated}"
    assert not re.search(r"call aten\.\w*(upsample|index)", runners[0].generated), f"{name}\n{runners[0].generated}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mode", _MODES)
def test_values_and_gradients_are_eagers(mode: str, dtype: torch.dtype) -> None:
    """f32 and f64 have eager's bits, and so have all gradients. Eager's 16-bit kernels round weights; these do not."""
    count = _COUNT if dtype == torch.float32 else max(1, _COUNT // 3)
    for seed in range(_SEED, _SEED + count):
        case = _Case(seed, mode, dtype)
        name = f"AG_TEST_SEED={seed}: {case}"
        resample, runners = _compiled(case.__call__)
        got, wanted = (_step(compute, case.image, case.gradient) for compute in (resample, case))
        _assert_native(runners, name)
        assert _same_bits(got[1], wanted[1]), f"{name}: the gradient differs"
        assert [tensor.stride() for tensor in got] == [tensor.stride() for tensor in wanted], name
        if dtype in (torch.float32, torch.float64) or mode.startswith("nearest"):
            assert _same_bits(got[0], wanted[0]), f"{name}: the result differs"
            continue
        exact = case(case.image.double())
        errors = [(result.double() - exact).abs().max() for result in (got[0], wanted[0])]
        assert errors[0] <= errors[1] + 1e-6, f"{name}: errs by {errors[0]}, eager by {errors[1]}"


@pytest.mark.parametrize("mode", _MODES)
def test_channels_that_fill_no_vector_are_close(mode: str) -> None:
    """ATen adds up the last channels in another order if their number is not a multiple of 8."""
    generator = torch.Generator().manual_seed(_SEED)
    image = torch.randn([3, 19, 9, 7], generator=generator)
    options: dict[str, Any] = {"mode": mode.removesuffix("-aligned"), "size": [21, 5]}
    if mode.startswith("bilinear"):
        options["align_corners"] = mode.endswith("aligned")

    def compute(x: Tensor) -> Tensor:
        return functional.interpolate(x, **options)

    gradient = torch.randn([3, 19, 21, 5], generator=generator)
    resample, runners = _compiled(compute)
    got, wanted = (_step(function, image, gradient) for function in (resample, compute))
    _assert_native(runners, f"AG_TEST_SEED={_SEED}")
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-6, atol=1e-6)
    assert _same_bits(got[1], wanted[1])


@pytest.mark.parametrize("sizes", [(8, 8, 16, 16), (8, 8, 8, 11), (9, 7, 5, 3), (40, 40, 80, 80)], ids=str)
@pytest.mark.parametrize("mode", _MODES)
def test_special_values_spread_as_in_eager(mode: str, sizes: tuple[int, ...]) -> None:
    """A weight of 0 times infinity is NaN, also where ATen reads one element twice."""
    generator = torch.Generator().manual_seed(_SEED)
    image, gradient = (torch.randn([2, 16, *size], generator=generator) for size in (sizes[:2], sizes[2:]))
    specials = (math.nan, math.inf, -math.inf)
    for tensor, (corner, value) in itertools.product((image, gradient), enumerate(specials)):
        tensor[0, corner, 0, 0] = tensor[0, corner + 3, -1, -1] = tensor[1, corner, tensor.shape[2] // 2, -1] = value
    options: dict[str, Any] = {"mode": mode.removesuffix("-aligned"), "size": sizes[2:]}
    if mode.startswith("bilinear"):
        options["align_corners"] = mode.endswith("aligned")

    def compute(x: Tensor) -> Tensor:
        return functional.interpolate(x, **options)

    resample, runners = _compiled(compute)
    got, wanted = (_step(function, image, gradient) for function in (resample, compute))
    _assert_native(runners, f"AG_TEST_SEED={_SEED}")
    for mine, eager in zip(got, wanted, strict=True):
        assert _same_bits(mine, eager)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    image = torch.randn([8, 40, 20, 20], generator=torch.Generator().manual_seed(_SEED))
    gradient = torch.randn([8, 40, 50, 50], generator=torch.Generator().manual_seed(_SEED + 1))
    module = torch.nn.Upsample(scale_factor=2.5, mode="bilinear")
    resample, runners = _compiled(module)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(_step(resample, image, gradient))
    assert runners
    for runner in runners:  # Dynamo may compile again for another number of threads
        _assert_native([runner], f"AG_TEST_SEED={_SEED}")
    for other in results[1:]:
        assert all(itertools.starmap(torch.equal, zip(results[0], other, strict=True)))


_CALLS = {
    "bicubic": ([2, 8, 8, 8], "aten.upsample_bicubic2d"),
    "linear": ([2, 8, 8], "aten.upsample_linear1d"),
    "nearest": ([2, 8, 8], "aten.upsample_nearest1d"),
    "nearest-exact": ([2, 8, 4, 8, 8], "aten._upsample_nearest_exact3d"),
    "trilinear": ([2, 8, 4, 8, 8], "aten.upsample_trilinear3d"),
}


@pytest.mark.parametrize("mode", _CALLS)
def test_other_forms_are_calls_of_the_operator(mode: str) -> None:
    sizes, operator = _CALLS[mode]
    image = torch.randn(sizes, generator=torch.Generator().manual_seed(_SEED))

    def compute(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2, mode=mode)

    gradient = torch.ones_like(compute(image))
    resample, runners = _compiled(compute)
    got, wanted = (_step(function, image, gradient) for function in (resample, compute))
    assert f"call {operator}.default" in runners[0].generated
    assert f"call {operator}_backward.default" in runners[0].generated
    assert "index" not in runners[0].generated
    assert all(itertools.starmap(torch.equal, zip(got, wanted, strict=True)))


def test_antialiasing_is_a_call() -> None:
    image = torch.randn([2, 8, 8, 8], generator=torch.Generator().manual_seed(_SEED))

    def compute(x: Tensor) -> Tensor:
        return functional.interpolate(x, size=[5, 5], mode="bilinear", antialias=True)

    gradient = torch.ones_like(compute(image))
    resample, runners = _compiled(compute)
    got, wanted = (_step(function, image, gradient) for function in (resample, compute))
    assert "call aten._upsample_bilinear2d_aa.default" in runners[0].generated
    assert all(itertools.starmap(torch.equal, zip(got, wanted, strict=True)))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_images_of_unknown_size_are_calls(mode: str) -> None:
    def compute(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2, mode=mode)

    resample, runners = _compiled(compute, dynamic=True)
    for size in (8, 11):
        image = torch.randn([2, 8, size, size + 1], generator=torch.Generator().manual_seed(_SEED))
        gradient = torch.ones_like(compute(image))
        got, wanted = (_step(function, image, gradient) for function in (resample, compute))
        assert all(itertools.starmap(torch.equal, zip(got, wanted, strict=True)))
    for runner in runners:
        assert f"call aten.upsample_{mode}2d.default" in runner.generated
        assert f"call aten.upsample_{mode}2d_backward.default" in runner.generated
        assert "the size of the image is not fixed" in runner.generated
        assert "index" not in runner.generated


@pytest.mark.parametrize("mode", sorted(_CALLS.keys() - {"bicubic"}))
def test_other_forms_train_with_unknown_sizes(mode: str) -> None:
    """Bicubic weights of unknown sizes are floats made from sizes, which no graph for `native` can hold."""

    def compute(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2, mode=mode)

    resample, runners = _compiled(compute, dynamic=True)
    for size in (8, 11):
        sizes = [2, 8, *(size + i for i in range(len(_CALLS[mode][0]) - 2))]
        image = torch.randn(sizes, generator=torch.Generator().manual_seed(_SEED))
        gradient = torch.ones_like(compute(image))
        got, wanted = (_step(function, image, gradient) for function in (resample, compute))
        torch.testing.assert_close(got, wanted)
    assert runners


def test_a_batch_of_unknown_size_is_native() -> None:
    def compute(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0, mode="bilinear")

    resample, runners = _compiled(compute, dynamic=None)
    for batch in (2, 3, 5):
        image = torch.randn([batch, 8, 6, 6], generator=torch.Generator().manual_seed(_SEED))
        gradient = torch.ones([batch, 8, 12, 12])
        got, wanted = (_step(function, image, gradient) for function in (resample, compute))
        assert all(itertools.starmap(torch.equal, zip(got, wanted, strict=True)))
    assert len(runners) == 2  # a fixed size first, and then any size
    for runner in runners:
        _assert_native([runner], f"AG_TEST_SEED={_SEED}")


def test_the_u_net_resamples_in_kernels() -> None:
    images = torch.randn([4, 3, 32, 32], generator=torch.Generator().manual_seed(_SEED))
    compiled, runners = _compiled(unet.UNet())
    compiled(images).sum().backward()
    _assert_native(runners, f"AG_TEST_SEED={_SEED}")


def test_operators_are_decomposed_again_after_the_last_user() -> None:
    operators = [torch.ops.aten.upsample_nearest2d.default, torch.ops.aten.upsample_bilinear2d.vec]
    before = [dict(operator.py_kernels) for operator in operators]
    with whole_resampling(), whole_resampling():
        assert [dict(operator.py_kernels) for operator in operators] != before
    assert [dict(operator.py_kernels) for operator in operators] == before
