# SPDX-License-Identifier: Apache-2.0
"""A model whose compute is replayed: operators that sleep, forward and backward, around real parameters and gradients.

AOTAutograd, Inductor and native keep these operators and their order, so compiled and eager steps take the same
compute. Sleeping needs no processor, so several hosts fit on few cores. Runs on the ranks.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 256


class _Pace:
    """How long each layer sleeps. If a layer sleeps too long, the next one sleeps that much less."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        """The share of each layer. Nothing sleeps if it is empty, as in a compile process."""
        self.forward = self.backward = 0.0
        self._late = 0.0

    def sleep(self, layer: int, all_layers_s: float) -> None:
        seconds = self.shares[layer] * all_layers_s if self.shares else 0.0
        until = time.monotonic() + seconds - self._late
        if (rest := until - time.monotonic()) > 0:
            time.sleep(rest)
            self._late = time.monotonic() - until
        else:
            self._late = -rest


PACE = _Pace()


@torch.library.custom_op("agspeed_bench::pace", mutates_args=())
def pace(x: Tensor, layer: int) -> Tensor:
    """Returns a copy of `x` at the time at which the layer's forward would be done."""
    PACE.sleep(layer, PACE.forward)
    return x.clone()


@pace.register_fake
def _(x: Tensor, layer: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("agspeed_bench::pace_backward", mutates_args=())
def pace_backward(gradient: Tensor, layer: int) -> Tensor:
    """Returns a copy of `gradient` at the time at which the layer's backward would be done."""
    PACE.sleep(layer, PACE.backward)
    return gradient.clone()


@pace_backward.register_fake
def _(gradient: Tensor, layer: int) -> Tensor:
    return torch.empty_like(gradient)


def _setup(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.layer = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return pace_backward(gradient, ctx.layer), None


pace.register_autograd(_backward, setup_context=_setup)


class Layer(nn.Module):
    """One parameter of `num_bytes`, a multiple of 256 KiB. Its gradient is ready when the backward has slept."""

    def __init__(self, number: int, num_bytes: int) -> None:
        super().__init__()
        self.number = number
        rows = num_bytes // 4 // WIDTH**2
        self.weight = nn.Parameter(torch.randn(rows * WIDTH, WIDTH) * (rows / WIDTH) ** 0.5)  # keeps the magnitude of x

    def forward(self, x: Tensor) -> Tensor:
        return pace(nn.functional.linear(x, self.weight).unflatten(-1, (-1, WIDTH)).mean(-2), self.number)


class Replayed(nn.Sequential):
    """`layers` holds bytes and share of the compute, in order of the forward pass. The model is the same on every
    rank."""

    def __init__(self, layers: Sequence[tuple[int, float]]) -> None:
        torch.manual_seed(0)
        super().__init__(*(Layer(number, num_bytes) for number, (num_bytes, _) in enumerate(layers)))


def set_pace(layers: Sequence[tuple[int, float]], forward_seconds: float, backward_seconds: float) -> None:
    """Sets how long all layers together sleep from now on."""
    PACE.shares = [share for _, share in layers]
    PACE.forward, PACE.backward = forward_seconds, backward_seconds
