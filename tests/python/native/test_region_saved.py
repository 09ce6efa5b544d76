# SPDX-License-Identifier: Apache-2.0
"""A Region's saved tensors are kept while the graph lives, freed in its last run, and copied if the code writes to
them."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from tests.python.native.regions import native_region


def _square_region() -> Any:
    """Returns a region for y = x * x that saves 2x. Its backward multiplies the gradient in the saved tensor's
    memory."""

    def forward(inputs: list[Any]) -> list[Any]:
        (x,) = inputs
        inputs.clear()
        return [x * x, 2 * x]

    def backward(inputs: list[Any]) -> list[Any]:
        saved, tangent = inputs
        inputs.clear()
        return [saved.mul_(tangent)]

    return native_region(
        (forward, (backward,)), requires_grad=[True], tangents=[0], num_saved_tensors=1, overwritten_saved=[0]
    )


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    x = torch.randn(5, requires_grad=True)
    y = _square_region()(x)[0]
    for _ in range(3):
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        torch.testing.assert_close(gradient, 2 * x.detach())
    (last,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(last, 2 * x.detach())
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)


def test_tensors_that_hooks_hold_are_not_overwritten() -> None:
    held: list[torch.Tensor] = []
    x = torch.randn(5, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        y = _square_region()(x)[0]
    before = [tensor.clone() for tensor in held]
    y.backward(torch.full_like(y, 7.0))
    torch.testing.assert_close(x.grad, 14 * x.detach())
    assert held
    for tensor, copy in zip(held, before, strict=True):
        torch.testing.assert_close(tensor, copy)


def test_the_node_lets_go_of_saved_tensors_before_the_last_run_ends() -> None:
    """A tensor that the code drops is freed at once, which lowers the memory of a backward pass."""
    alive: list[bool] = []

    def forward(inputs: list[Any]) -> list[Any]:
        return [inputs[0] * 3, inputs[0].exp()]

    def backward(inputs: list[Any]) -> list[Any]:
        saved, tangent = inputs
        inputs.clear()
        reference = weakref.ref(saved)
        del saved
        alive.append(reference() is not None)
        return [3 * tangent]

    region = native_region((forward, (backward,)), requires_grad=[True], tangents=[0], num_saved_tensors=1)
    x = torch.randn(4, requires_grad=True)
    y = region(x)[0]
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert alive == [True, False]
