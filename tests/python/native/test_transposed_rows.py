# SPDX-License-Identifier: Apache-2.0
"""Layer normalisation of rows that are not contiguous: values, gradients and layouts against eager.

In such tensors the rows are neighbours in memory, and the elements of a row are far apart: channels of an NCHW image,
or columns of a transposed matrix. AG_TEST_SEED chooses the seed, and AG_TEST_THOROUGH=1 runs more cases.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate

pytestmark = pytest.mark.usefixtures("needs_native")
_SEED = int(os.environ.get("AG_TEST_SEED", "1"))
_COUNT = 60 if os.environ.get("AG_TEST_THOROUGH") == "1" else 6

Function = Callable[..., Tensor]


def _compiled(function: Function, seen: list[Any], dynamic: bool = False) -> Function:
    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        seen.append(candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads())))
        return seen[-1]

    torch._dynamo.reset()
    compiled: Function = torch.compile(function, backend=backend, dynamic=dynamic)
    return compiled


def _step(function: Function, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """The result and all gradients. The gradient of the result has the layout of its transpose."""
    leaves = []
    for tensor in tensors:
        leaf = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype)
        leaves.append(leaf.copy_(tensor).requires_grad_())
    result = function(*leaves)
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(result.mT.shape, generator=generator).to(result.dtype).mT
    result.backward(weights)
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _calls(seen: list[Any]) -> list[str]:
    """The calls of layer normalisation in all programs."""
    assert seen
    return [line for runner in seen for line in runner.generated.splitlines() if "call aten.native_layer_norm" in line]


def _assert_close(name: str, got: list[Tensor], wanted: list[Tensor], exact: list[Tensor]) -> None:
    for index, (mine, eager, reference) in enumerate(zip(got, wanted, exact, strict=True)):
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride(), f"{name}: result {index}"
        assert torch.equal(mine.isnan(), reference.isnan()), f"{name}: NaN of result {index}"
        if reference.numel() == 0:
            continue
        finite = reference.isfinite()
        scale = reference[finite].square().mean().sqrt().clamp_min(1e-6)
        error, yardstick = ((t.double() - reference)[finite].abs().max() / scale for t in (mine, eager))
        assert error <= max(4 * yardstick, 2e-6), f"{name}: result {index} errs by {error}, eager by {yardstick}"


class _Case:
    """A layer normalisation between element-wise operators, of an image whose rows are neighbours."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        pick = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        columns = pick.choice([[1], [5], [16], [64], [100], [257], [3, 40]])
        rows = pick.choice([[16], [49], [64], [7, 9], [4, 16]])
        batch = pick.choice([[], [1], [3]])
        memory = torch.randn([*batch, *columns, *rows], generator=generator).mul(pick.choice([1, 30]))
        if pick.random() < 0.3:
            memory += 1000
        first, last = len(batch), len(batch) + len(columns)
        order = [*range(first), *range(last, memory.dim()), *range(first, last)]
        self.image = memory.to(dtype).permute(order)
        self.shape = columns
        self.tensors = [self.image]
        if pick.random() < 0.8:
            self.tensors += [torch.randn(columns, generator=generator).to(dtype) for _ in range(2)]
        self.adds, self.activates = pick.random() < 0.5, pick.random() < 0.5

    def __call__(self, x: Tensor, *affine: Tensor) -> Tensor:
        source = x * 1.5 + 0.25 if self.adds else x
        y = functional.layer_norm(source, self.shape, *affine)
        return functional.gelu(y) + x if self.activates else y

    def in_two_passes(self, x: Tensor, *affine: Tensor) -> Tensor:
        """The same, with fewer roundings than ATen's kernel, for which an element may differ from a mean of itself."""
        source = x * 1.5 + 0.25 if self.adds else x
        dims = [-1 - index for index in range(len(self.shape))]
        difference = source - source.mean(dims, keepdim=True)
        y = difference * (difference.square().mean(dims, keepdim=True) + 1e-5).rsqrt()
        if affine:
            y = y * affine[0] + affine[1]
        return functional.gelu(y) + x if self.activates else y

    def __str__(self) -> str:
        return f"{self.image.dtype} {tuple(self.image.shape)} with strides {self.image.stride()}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_values_gradients_and_layouts_are_eagers(dtype: torch.dtype) -> None:
    count = _COUNT if dtype == torch.float32 else max(2, _COUNT // 4)
    for seed in range(_SEED, _SEED + count):
        case = _Case(seed, dtype)
        name = f"AG_TEST_SEED={seed}: {case}"
        print(name)
        seen: list[Any] = []
        got = _step(_compiled(case.__call__, seen), case.tensors)
        _assert_close(name, got, _step(case, case.tensors), _step(case.in_two_passes, case.tensors, torch.float64))
        assert not _calls(seen), name


def test_bits_are_those_of_contiguous_rows() -> None:
    for seed in range(_SEED, _SEED + _COUNT):
        case = _Case(seed, torch.float32)
        results = []
        for tensors in (case.tensors, [case.image.contiguous(), *case.tensors[1:]]):
            results.append(_step(_compiled(case.__call__, []), tensors))
        for index, (a, b) in enumerate(zip(*results, strict=True)):
            assert torch.equal(a, b), f"AG_TEST_SEED={seed}: result {index} of {case}"


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    image = torch.randn([9, 96, 70], generator=torch.Generator().manual_seed(_SEED)).mT
    weight, bias = torch.linspace(-1, 2, 96), torch.linspace(3, -1, 96)
    run = _compiled(lambda x, w, b: functional.layer_norm(x, [96], w, b), [])
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(_step(run, [image, weight, bias]))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_nan_and_infinity_stay_in_their_rows() -> None:
    image = torch.randn([2, 40, 50], generator=torch.Generator().manual_seed(_SEED))
    image[0, 3, 7], image[0, 39, 20], image[1, 0, 49] = math.nan, math.inf, -math.inf
    seen: list[Any] = []

    def norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [40])

    got, wanted = _step(_compiled(norm, seen), [image.mT]), _step(norm, [image.mT])
    assert not _calls(seen)
    for mine, eager in zip(got, wanted, strict=True):
        assert torch.equal(mine.isnan(), eager.isnan()) and int(mine.isnan().any(-1).sum()) == 3
        torch.testing.assert_close(mine, eager, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "is_call"),
    [([2, 40, 15], True), ([2, 1025, 16], True), ([2, 40, 16], False), ([2, 1024, 16], False), ([0, 40, 16], True)],
    ids=["few neighbours", "long rows", "fewest neighbours", "longest rows", "empty"],
)
def test_only_rows_that_gain_are_native(shape: list[int], is_call: bool) -> None:
    image = torch.randn(shape, generator=torch.Generator().manual_seed(_SEED)).mT
    seen: list[Any] = []

    def norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [shape[1]])

    got = _step(_compiled(norm, seen), [image])
    _assert_close(str(shape), got, _step(norm, [image]), _step(norm, [image], torch.float64))
    assert bool(_calls(seen)) == is_call, seen[0].generated


def test_unknown_numbers_of_rows() -> None:
    seen: list[Any] = []

    def norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [24]).relu()

    run = _compiled(norm, seen, dynamic=True)
    for batch, rows in ((3, 50), (2, 17), (5, 130)):
        image = torch.randn([batch, 24, rows], generator=torch.Generator().manual_seed(_SEED)).mT
        torch._dynamo.mark_static(image, 2)
        got, wanted = _step(run, [image]), _step(norm, [image])
        _assert_close(f"{batch} x {rows}", got, wanted, _step(norm, [image], torch.float64))


def test_rows_that_repeat_in_one_of_two_dimensions() -> None:
    image = torch.randn(6, 20).t().unsqueeze(-1).expand(20, 6, 5)
    seen: list[Any] = []
    result = _compiled(lambda x: functional.layer_norm(x, [6, 5]), seen)(image)
    torch.testing.assert_close(result, functional.layer_norm(image, [6, 5]))
    assert seen


@pytest.mark.parametrize(
    "after", [lambda y: y.sum(-1), lambda y: y.sum(1), lambda y: y.mT.contiguous()], ids=["last", "first", "transposed"]
)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_any_layout_of_the_gradient(after: Callable[[Tensor], Tensor], is_transposed: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return after(functional.layer_norm(x, [3, 40])).square().sum()

    memory = torch.randn(3, 40, 20).permute(2, 0, 1) if is_transposed else torch.randn(20, 3, 40)
    gradients, seen = [], list[Any]()
    for step in (function, _compiled(function, seen)):
        leaf = memory.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        step(leaf).backward()
        gradients.append(leaf.grad)
    assert seen
    torch.testing.assert_close(gradients[1], gradients[0])
