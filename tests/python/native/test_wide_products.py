# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of 16-bit floats that are computed in float32: values, gradients and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agspeed.backends import CompileOptions, candidate
from agspeed.backends.numerics import wide_products

pytestmark = pytest.mark.usefixtures("needs_native")
Function = Callable[..., Tensor]


def _attention(x: Tensor) -> Tensor:
    heads = x.tanh().view(2, 3, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    return functional.scaled_dot_product_attention(heads, heads.flip(2), heads * 2, attn_mask=mask).sigmoid()


def _convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.conv2d(x.tanh(), weight, bias, padding=1).relu()


_FUNCTIONS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "mm": (lambda a, b: (a.sigmoid() @ b).tanh(), [(5, 24), (24, 7)]),
    "mm of transposed": (lambda a, b: (a.mT.sigmoid() @ b.mT).tanh(), [(24, 5), (7, 24)]),
    "mm of a slice": (lambda a, b: (a[:, 3:20] @ b.exp()).tanh(), [(5, 24), (17, 7)]),
    "mm of an expanded vector": (lambda a, b: a.expand(5, 24) @ b.tanh(), [(24,), (24, 7)]),
    "linear with bias": (lambda x, w, b: functional.gelu(functional.linear(x, w, b)), [(2, 3, 24), (7, 24), (7,)]),
    "bmm": (lambda a, b: (a.tanh() @ b).view(3, 35).softmax(-1), [(3, 5, 24), (3, 24, 7)]),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), [(3, 5, 7), (3, 5, 24), (3, 24, 7)]),
    "one product read twice": (lambda a, b: (a @ b).tanh() + (a @ b).view(-1).exp().view(5, 7), [(5, 24), (24, 7)]),
    "attention": (_attention, [(2, 120)]),
    "convolution": (_convolution, [(2, 3, 9, 8), (5, 3, 3, 3), (5,)]),
    "convolution 1x1": (lambda x, w: functional.conv2d(x.tanh(), w).relu(), [(2, 16, 9, 8), (32, 16, 1, 1)]),
    "transposed convolution": (lambda x, w: functional.conv_transpose1d(x, w, stride=2).tanh(), [(2, 3, 9), (3, 5, 3)]),
}


@pytest.fixture
def all_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every processor one without fast 16-bit products."""
    monkeypatch.setattr(wide_products, "slow_types", lambda: frozenset({torch.bfloat16, torch.float16}))


@pytest.mark.usefixtures("all_are_slow")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_values_gradients_and_layouts_are_eagers(name: str, dtype: torch.dtype) -> None:
    function, sizes = _FUNCTIONS[name]
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    seen: list[Any] = []
    got = _step(_compiled(function, seen), tensors)
    wanted = _step(function, tensors)
    exact = _step(function, [tensor.double() for tensor in tensors])
    for index, (mine, eager, reference) in enumerate(zip(got, wanted, exact, strict=True)):
        assert (mine.dtype, mine.stride()) == (eager.dtype, eager.stride()), f"result {index}"
        error, yardstick = ((found.double() - reference).abs().max().item() for found in (mine, eager))
        unit = torch.finfo(dtype).eps * reference.abs().max().item()
        assert error <= 2 * yardstick + unit, f"result {index} errs by {error}, eager by {yardstick}"
    products = [line for line in _calls(seen) if any(word in line for word in ("mm", "convolution", "backward"))]
    assert products and all("f32[" in line for line in products), "\n".join(products)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_that_torch_computes_fast_keep_their_type(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(wide_products, "slow_types", lambda: frozenset({torch.float16}))
    function, sizes = _FUNCTIONS["mm"]
    seen: list[Any] = []
    _step(_compiled(function, seen), [torch.randn(size).to(dtype) for size in sizes])
    products = [line for line in _calls(seen) if "mm" in line]
    wanted = "f32[" if dtype == torch.float32 else "bf16["
    assert len(products) == 3 and all(wanted in line for line in products), "\n".join(products)


@pytest.mark.usefixtures("all_are_slow")
def test_depthwise_convolutions_stay_kernels() -> None:
    seen: list[Any] = []
    function = _compiled(lambda x, w: functional.conv2d(x, w, padding=1, groups=16), seen)
    got = _step(function, [torch.randn(2, 16, 9, 8).bfloat16(), torch.randn(16, 1, 3, 3).bfloat16()])
    assert all(result.dtype == torch.bfloat16 for result in got)
    assert not [line for line in _calls(seen) if "convolution" in line]


def _compiled(function: Function, seen: list[Any]) -> Function:
    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        seen.append(candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads())))
        return seen[-1]

    torch._dynamo.reset()
    compiled: Function = torch.compile(function, backend=backend, dynamic=False, fullgraph=True)
    return compiled


def _step(function: Function, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the result and all gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    result = function(*leaves)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(5)).to(result.dtype)
    result.backward(weights)
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _calls(seen: list[Any]) -> list[str]:
    assert seen
    return [line for runner in seen for line in runner.generated.splitlines() if "call aten." in line]
