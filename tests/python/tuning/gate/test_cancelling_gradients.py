# SPDX-License-Identifier: Apache-2.0
"""Networks whose gradients cancel: another order of the same sums is accepted, small mistakes are rejected.

If another normalisation follows a batch normalisation, the gradient of the first one's bias is zero except for
rounding. Squeeze-and-excite passes all gradients through few sums. A scale of zero switches whole branches off. Group
norms follow one another. The mutants change one place of a network, in the forward or in the backward. Seeds are
printed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from agspeed.tuning.gate import check as gate
from tests.python.support.pairs import pairs

pytestmark = pytest.mark.usefixtures("one_thread")

Change = Callable[[torch.Tensor], torch.Tensor]
At = Callable[[str, torch.Tensor], torch.Tensor]
Network = Callable[..., tuple[torch.Tensor, ...]]


def _plain(place: str, value: torch.Tensor) -> torch.Tensor:
    return value


def _norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, None, None, weight, bias, training=True)


def _inverted_bottleneck(x: torch.Tensor, *parameters: torch.Tensor, at: At = _plain) -> tuple[torch.Tensor, ...]:
    """Like EfficientNet: small images and few channels, then the next block's expansion and its head."""
    expand, depthwise, squeeze, excite, project, following, head, *scales = parameters
    w1, b1, w2, b2, w3, b3, w4, b4 = scales
    x = functional.silu(_norm(at("expanded", functional.conv2d(x, expand)), w1, b1))
    x = functional.silu(_norm(at("depthwise", functional.conv2d(x, depthwise, padding=1, groups=len(w2))), w2, b2))
    pooled = at("pooled", x.mean((2, 3), keepdim=True))
    x = x * functional.conv2d(functional.silu(functional.conv2d(pooled, squeeze)), excite).sigmoid()
    x = at("projected", _norm(functional.conv2d(x, project), w3, b3))
    x = functional.silu(_norm(functional.conv2d(x, following), w4, b4))
    return (functional.linear(at("features", x.mean((2, 3))), head),)


def _response_normalised(x: torch.Tensor, *parameters: torch.Tensor, at: At = _plain) -> tuple[torch.Tensor, ...]:
    """Like ConvNeXt V2."""
    depthwise, weight, bias, up, up_bias, scale, shift, down, down_bias, head = parameters
    y = at("depthwise", functional.conv2d(x, depthwise, padding=1, groups=x.shape[1])).permute(0, 2, 3, 1)
    y = at("normal", functional.layer_norm(y, (x.shape[1],), weight, bias))
    y = functional.gelu(at("expanded", functional.linear(y, up, up_bias)))
    size = y.norm(dim=(1, 2), keepdim=True)
    response = at("response", size / (size.mean(-1, keepdim=True) + 1e-6))
    y = y + torch.addcmul(shift, scale, y * response)
    x = x + at("projected", functional.linear(y, down, down_bias)).permute(0, 3, 1, 2)
    return (functional.linear(at("features", x.mean((2, 3))), head),)


def _resampled(x: torch.Tensor, *parameters: torch.Tensor, at: At = _plain) -> tuple[torch.Tensor, ...]:
    """Like a U-Net: half the resolution and back, beside a skip connection, with group norms."""
    enter, narrow, widen, leave, *scales = parameters
    w1, b1, w2, b2, w3, b3 = scales
    skipped = functional.silu(functional.group_norm(at("entered", functional.conv2d(x, enter, padding=1)), 2, w1, b1))
    y = functional.conv2d(functional.avg_pool2d(skipped, 2), narrow, padding=1)
    y = functional.silu(functional.group_norm(at("narrow", y), 4, w2, b2))
    y = torch.cat([at("resampled", functional.interpolate(y, scale_factor=2)), skipped], 1)
    y = functional.silu(functional.group_norm(at("joined", functional.conv2d(y, widen, padding=1)), 2, w3, b3))
    return (functional.conv2d(at("features", y), leave),)


def _resampled_inputs(seed: int) -> list[torch.Tensor]:
    scales = [value for width in (8, 16, 8) for value in (torch.ones(width), torch.zeros(width))]
    return _inputs((6, 3, 8, 8), ((8, 3, 3, 3), (16, 8, 3, 3), (8, 24, 3, 3), (3, 8, 1, 1)), scales, seed)


def _bottleneck_inputs(seed: int) -> list[torch.Tensor]:
    shapes = ((24, 8, 1, 1), (24, 1, 3, 3), (4, 24, 1, 1), (24, 4, 1, 1), (8, 24, 1, 1), (32, 8, 1, 1), (10, 32))
    scales = [value for width in (24, 24, 8, 32) for value in (torch.ones(width), torch.zeros(width))]
    return _inputs((8, 8, 8, 8), shapes, scales, seed)


def _response_inputs(seed: int, *, is_trained: bool = False) -> list[torch.Tensor]:
    """The scale of the response normalisation is zero at first, which hides the branch that it scales."""
    first, *rest = _inputs((6, 8, 8, 8), ((8, 1, 3, 3), (32, 8), (8, 32), (10, 8)), [], seed)
    depthwise, up, down, head = rest
    plain = [torch.ones(8), *(torch.zeros(size) for size in (8, 32, 32, 32, 8))]
    plain[3] += 0.5 * is_trained
    weight, bias, up_bias, scale, shift, down_bias = (torch.nn.Parameter(value) for value in plain)
    return [first, depthwise, weight, bias, up, up_bias, scale, shift, down, down_bias, head]


def _inputs(
    image: tuple[int, ...], shapes: tuple[tuple[int, ...], ...], more: list[torch.Tensor], seed: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: tuple[int, ...]) -> torch.Tensor:
        fan = max(torch.Size(shape[1:]).numel(), 1)
        return torch.randn(shape, generator=generator) / fan**0.5

    drawn = [torch.randn(image, generator=generator)]
    return [*drawn, *(torch.nn.Parameter(value) for value in (*map(normal, shapes), *more))]


_PLACES = ("depthwise", "normal", "expanded", "projected", "features")
NETWORKS: dict[str, tuple[Network, Callable[[int], list[torch.Tensor]], tuple[str, ...]]] = {
    "inverted bottleneck": (
        _inverted_bottleneck,
        _bottleneck_inputs,
        ("expanded", "depthwise", "pooled", "projected", "features"),
    ),
    "response normalisation at its start": (_response_normalised, _response_inputs, _PLACES),
    "response normalisation": (
        _response_normalised,
        functools.partial(_response_inputs, is_trained=True),
        (*_PLACES, "response"),
    ),
    "resampling": (_resampled, _resampled_inputs, ("entered", "narrow", "resampled", "joined", "features")),
}


def _wrong_row(value: torch.Tensor) -> torch.Tensor:
    """Puts the batch's second row in the place of its first."""
    return torch.cat([value[1:2], value[1:]])


def _without_last_block(value: torch.Tensor) -> torch.Tensor:
    """Has the effect of a sum that drops its last eight terms."""
    mask = torch.ones(value.numel())
    mask[-8:] = 0
    return value * mask.reshape(value.shape)


def _scaled(value: torch.Tensor) -> torch.Tensor:
    return value * 1.001


def _shifted_mask(value: torch.Tensor) -> torch.Tensor:
    """Drops the wrong elements: the correct network drops every seventh element, this drops the one after it."""
    return value * _mask(value).roll(1).reshape(value.shape)


def _mask(value: torch.Tensor) -> torch.Tensor:
    return (torch.arange(value.numel()) % 7 != 0).to(value.dtype)


MISTAKES: dict[str, Change] = {
    "one wrong row": _wrong_row,
    "no last block": _without_last_block,
    "scale off by 1e-3": _scaled,
    "mask off by one": _shifted_mask,
}


class _Changed(torch.autograd.Function):
    """Passes the forward's value through one function and the backward's gradient through another."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, forward: Change, backward: Change) -> torch.Tensor:
        ctx.change = backward
        return forward(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.change(gradient), None, None


def _at(place: str, forward: Change, backward: Change) -> At:
    def at(here: str, value: torch.Tensor) -> torch.Tensor:
        return _Changed.apply(value, forward, backward) if here == place else value  # type: ignore[no-any-return]

    return at


def _unchanged(value: torch.Tensor) -> torch.Tensor:
    return value.view_as(value)


def _masked(value: torch.Tensor) -> torch.Tensor:
    return value * _mask(value).reshape(value.shape)


@pytest.mark.parametrize(("mistake", "direction"), pairs(list(MISTAKES), ["forward", "backward"]))
@pytest.mark.parametrize("name", NETWORKS)
def test_rejects_a_small_mistake_at_every_place(name: str, direction: str, mistake: str) -> None:
    network, make_inputs, places = NETWORKS[name]
    right = _masked if "mask" in mistake else _unchanged
    wrong = MISTAKES[mistake]
    survivors = []
    for place in places:
        forwards = (right, wrong) if direction == "forward" else (right, right)
        backwards = (right, right) if direction == "forward" else (right, wrong)
        original, mutant = (_at(place, f, b) for f, b in zip(forwards, backwards, strict=True))
        verdict = gate.check(
            lambda *args, at=mutant: network(*args, at=at),
            lambda *args, at=original: network(*args, at=at),
            make_inputs(11),
        )
        if verdict.outcome != "rejected":
            survivors.append(f"{place}: {verdict.reason}")
    assert not survivors, f"seed 11, accepted though different: {survivors}"


def _in_another_order(network: Network) -> Network:
    def other(x: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = [p.flip(2, 3) if p.dim() == 4 else p for p in parameters]
        (result,) = network(x.flip(0, 2, 3), *turned)
        return (result.flip(0, 2, 3) if result.dim() == 4 else result.flip(0),)

    return other


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", NETWORKS)
def test_accepts_another_order_of_all_sums(name: str, seed: int) -> None:
    network, make_inputs, _ = NETWORKS[name]
    verdict = gate.check(_in_another_order(network), network, make_inputs(seed))
    assert verdict.accepted, f"seed {seed}: {verdict.reason}"
