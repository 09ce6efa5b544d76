# SPDX-License-Identifier: Apache-2.0
"""A small training region and wrong versions of it, each wrong in exactly one way.

`region` draws random numbers, changes a buffer, and returns a view of an input, integers and several differentiable
outputs. So every clause of the gate has something to check. ``MUTANTS`` maps a name to a function that makes a wrong
region. Some keep state between calls, so each test makes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Region = Callable[..., tuple[Any, ...]]
NUM_INPUTS = 5


def region(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, running: torch.Tensor, index: torch.Tensor
) -> Any:
    hidden = functional.gelu(functional.linear(x, weight, bias))
    hidden = functional.dropout(hidden, 0.25, training=True)
    running.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
    probabilities = hidden.softmax(-1)
    picked = probabilities.gather(1, index[:, None])
    total = x[:, 1:].sum(-1)
    return hidden, probabilities, picked.log().sum(), hidden.argmax(-1), x.t(), total


def inputs(dtype: torch.dtype = torch.float32, batch: int = 12, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    weight, bias = torch.nn.Parameter(normal(8, 8) * 0.5), torch.nn.Parameter(normal(8))
    index = torch.randint(0, 8, (batch,), generator=generator)
    return [normal(batch, 8).requires_grad_(), weight, bias, normal(8), index]


class _Tampered(torch.autograd.Function):
    """An identity whose gradient passes through a function."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        ctx.change = change
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.change(gradient), None


def _output(index: int, change: Callable[[Any], Any]) -> Callable[[], Region]:
    def make() -> Region:
        def wrong(*args: Any) -> tuple[Any, ...]:
            results = list(region(*args))
            results[index] = change(results[index])
            return tuple(results)

        return wrong

    return make


def _gradient(index: int, change: Callable[[torch.Tensor], Any]) -> Callable[[], Region]:
    def make() -> Region:
        def wrong(*args: Any) -> tuple[Any, ...]:
            changed = list(args)
            changed[index] = _Tampered.apply(args[index], change)
            results = list(region(*changed))
            if index == 0:  # the view of the input has to share the input's memory
                results[4] = args[0].t()
            return tuple(results)

        return wrong

    return make


def _around(change: Callable[..., tuple[Any, ...]]) -> Callable[[], Region]:
    return lambda: change


def _one_element(value: torch.Tensor, flat_index: int, amount: float) -> torch.Tensor:
    delta = torch.zeros_like(value)
    delta.view(-1)[flat_index] = amount
    return value + delta


def _nan_at(value: torch.Tensor) -> torch.Tensor:
    return _one_element(value, 3, float("nan"))


def _stale_output() -> Region:
    kept: dict[tuple[int, ...], torch.Tensor] = {}

    def wrong(*args: Any) -> tuple[Any, ...]:
        results = list(region(*args))
        with torch.no_grad():
            buffer = kept.setdefault(tuple(results[5].shape), torch.empty_like(results[5]))
            buffer.copy_(results[5])
        results[5] = _SameMemory.apply(results[5], buffer)
        return tuple(results)

    return wrong


class _SameMemory(torch.autograd.Function):
    """Returns the given memory as its result."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        return buffer.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def _stale_gradient() -> Region:
    kept: list[torch.Tensor] = []

    def into_kept(gradient: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(torch.empty_like(gradient))
        return kept[0].copy_(gradient)

    return _gradient(1, into_kept)()


def _accumulating() -> Region:
    calls = [0]

    def wrong(*args: Any) -> tuple[Any, ...]:
        results = list(region(*args))
        results[1] = results[1] + 1e-3 * calls[0]
        calls[0] += 1
        return tuple(results)

    return wrong


def _accumulating_gradient() -> Region:
    total: list[torch.Tensor] = []

    def add(gradient: torch.Tensor) -> torch.Tensor:
        total.append(gradient)
        return torch.stack(total).sum(0)

    return _gradient(1, add)()


def only_this_batch(*args: Any) -> tuple[Any, ...]:
    results = list(region(*args))
    results[5] = args[0][:, 1:].sum(-1) if len(args[0]) == 12 else args[0][:, :-1].sum(-1)
    return tuple(results)


def _missing_mutation(*args: Any) -> tuple[Any, ...]:
    return tuple(region(*args[:3], args[3].clone(), args[4]))


def _extra_mutation(*args: Any) -> tuple[Any, ...]:
    results = tuple(region(*args))
    with torch.no_grad():
        args[2].view(-1)[2].mul_(1.5)
    return results


def _mutates_twice(*args: Any) -> tuple[Any, ...]:
    results = tuple(region(*args))
    args[3].mul_(0.999)
    return results


def _wrong_mask(*args: Any) -> tuple[Any, ...]:
    torch.rand(1)
    return tuple(region(*args))


def _other_mask_same_draws(x: Any, weight: Any, bias: Any, running: Any, index: Any) -> tuple[Any, ...]:
    hidden = functional.gelu(functional.linear(x, weight, bias))
    mask = torch.empty_like(hidden).bernoulli_(0.75).flip(0) / 0.75
    hidden = hidden * mask
    running.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
    probabilities = hidden.softmax(-1)
    picked = probabilities.gather(1, index[:, None])
    return hidden, probabilities, picked.log().sum(), hidden.argmax(-1), x.t(), x[:, 1:].sum(-1)


def _without_dropout(x: Any, weight: Any, bias: Any, running: Any, index: Any) -> tuple[Any, ...]:
    hidden = functional.gelu(functional.linear(x, weight, bias))
    running.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
    probabilities = hidden.softmax(-1)
    picked = probabilities.gather(1, index[:, None])
    return hidden, probabilities, picked.log().sum(), hidden.argmax(-1), x.t(), x[:, 1:].sum(-1)


def _swapped(*args: Any) -> tuple[Any, ...]:
    hidden, probabilities, *rest = region(*args)
    return probabilities, hidden, *rest


def _raises(*args: Any) -> tuple[Any, ...]:
    raise RuntimeError("kernel launch failed")


def _raises_on_second_call() -> Region:
    calls = [0]

    def wrong(*args: Any) -> tuple[Any, ...]:
        calls[0] += 1
        if calls[0] == 2:
            raise IndexError("out of range")
        return tuple(region(*args))

    return wrong


def _assumes_contiguous_tangent(gradient: torch.Tensor) -> torch.Tensor:
    """Reads the tangent's memory as if it were dense, which is wrong for the expanded tangents of
    ``sum().backward()``."""
    if 0 not in gradient.stride():
        return gradient
    return gradient.contiguous() * torch.arange(gradient.shape[-1], dtype=gradient.dtype)


MUTANTS: dict[str, Callable[[], Region]] = {
    "one element": _output(0, lambda v: _one_element(v, 7, 1e-2)),
    "one small error in one element": _output(5, lambda v: _one_element(v, 1, 1e-4)),
    "one element of a gradient": _gradient(1, lambda g: _one_element(g, 5, 1e-2)),
    "one NaN": _output(1, _nan_at),
    "one NaN in a gradient": _gradient(2, _nan_at),
    "one infinity": _output(0, lambda v: _one_element(v, 2, float("inf"))),
    "scaled by 1.001": _output(1, lambda v: v * 1.001),
    "shifted by 1e-4": _output(5, lambda v: v + 1e-4),
    "scaled gradient": _gradient(0, lambda g: g * 1.001),
    "transposed gradient": _gradient(1, lambda g: g.t()),
    "zero gradient": _gradient(2, torch.zeros_like),
    "missing gradient": _gradient(2, lambda g: None),
    "negated gradient": _gradient(0, torch.neg),
    "gradient of one row": _gradient(1, lambda g: g * (torch.arange(8) != 3)[:, None]),
    "gradient that ignores strides": _output(0, lambda v: _Tampered.apply(v, _assumes_contiguous_tangent)),
    "stale output": _stale_output,
    "stale gradient": _stale_gradient,
    "accumulates across calls": _accumulating,
    "gradient accumulates across calls": _accumulating_gradient,
    "wrong dtype": _output(5, lambda v: v.to(torch.float16)),
    "wrong integer dtype": _output(3, lambda v: v.to(torch.int32)),
    "wrong stride": _output(0, lambda v: v.t().contiguous().t()),
    "wrong shape": _output(5, lambda v: v[:, None]),
    "integer off by one": _output(3, lambda v: (v + 1) % 8),
    "one integer": _output(3, lambda v: torch.where(torch.arange(len(v)) == 4, (v + 1) % 8, v)),
    "a number instead of a tensor": _output(2, float),
    "not differentiable": _output(1, torch.detach),
    "copy instead of a view": _output(4, torch.clone),
    "view of another place": _output(4, lambda v: v.flip(0)),
    "output shares memory with another": _around(
        lambda *args: (lambda r: (r[0], r[1], r[2], r[3], r[4], r[0][:, 0]))(region(*args))
    ),
    "swapped outputs": _around(_swapped),
    "missing output": _around(lambda *args: tuple(region(*args))[:-1]),
    "extra output": _around(lambda *args: (*region(*args), None)),
    "off-by-one slice": _around(lambda *args: (*tuple(region(*args))[:5], args[0][:, :-1].sum(-1))),
    "missing mutation": _around(_missing_mutation),
    "extra mutation": _around(_extra_mutation),
    "mutation of another value": _around(_mutates_twice),
    "one draw more": _around(_wrong_mask),
    "other random mask": _around(_other_mask_same_draws),
    "no dropout": _around(_without_dropout),
    "raises": _around(_raises),
    "raises on the second call": _raises_on_second_call,
}
