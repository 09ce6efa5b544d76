# SPDX-License-Identifier: Apache-2.0
"""Modules that each use a custom autograd.Function in a different way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

WIDTH = 6


class Using(nn.Module):
    """Calls `apply` of a custom function between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.use(torch.tanh(self.first(x)))))

    def use(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Plain(Using):
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 3  # not the derivative, so that it shows that this backward ran

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Double.apply(x)


class InPlaceOnAClone(Using):
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x.mul_(2)
            return x

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Double.apply(x)


def _in_place(name: str, change: Any, gradient: float = 2.0) -> type[Using]:
    """A function that changes a copy in place and returns it."""

    class Changing(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return change(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * gradient

    def use(self: Using, x: torch.Tensor) -> torch.Tensor:
        return Changing.apply(x)

    return type(name, (Using,), {"use": use})


def _clamp(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.clamp_(-0.5, 0.5)
    return x


def _masked_fill(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.masked_fill_(x > 0, 0.25)
    return x


def _iadd(x: torch.Tensor) -> torch.Tensor:
    x = x + 0
    x += 1
    return x


def _out(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    torch.mul(x, 2, out=result)
    return result


def _copy(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    result.copy_(x)
    return result


def _index_put(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[0] = 1.0
    return x


def _view_of_copy(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.view(-1).mul_(2)
    return x


Clamp = _in_place("Clamp", _clamp)
MaskedFill = _in_place("MaskedFill", _masked_fill)
AddInPlace = _in_place("AddInPlace", _iadd)
OutArgument = _in_place("OutArgument", _out)
CopyIntoEmpty = _in_place("CopyIntoEmpty", _copy)
IndexPut = _in_place("IndexPut", _index_put)
InPlaceThroughAView = _in_place("InPlaceThroughAView", _view_of_copy)
ReturnsItsInput = _in_place("ReturnsItsInput", lambda x: x)
ReturnsAView = _in_place("ReturnsAView", lambda x: x.view(x.shape))
Detached = _in_place("Detached", lambda x: x.detach() * 2)


class MarkDirty(Using):
    class Scale(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 3

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Scale.apply(x * 1)


class MarkDirtyUsedUnderItsOldName(MarkDirty):
    def use(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        self.Scale.apply(y)
        return y


class MarkDirtyThroughAView(MarkDirty):
    def use(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        self.Scale.apply(y)
        return y.view(-1).view_as(x)


class Pair(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return g * y + 2 * h, g * x + 3 * h


class TwoInputsTwoOutputs(Using):
    def use(self, x: torch.Tensor) -> torch.Tensor:
        product, total = Pair.apply(x, x.sin())
        return product + total


class SameTensorTwice(Using):
    def use(self, x: torch.Tensor) -> torch.Tensor:
        product, total = Pair.apply(x, x)
        return product + total


class OneOutputUnused(Using):
    def use(self, x: torch.Tensor) -> torch.Tensor:
        return Pair.apply(x, x.cos())[0]


class NoMaterializedGradients(Using):
    class Twins(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor | None, h: torch.Tensor | None) -> torch.Tensor:
            return 2 * g if h is None else 2 * g + 3 * h + 4

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Twins.apply(x)[0]


class NonDifferentiableOutput(Using):
    class Ranked(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, order = x.sort(dim=-1)
            ctx.mark_non_differentiable(order)
            ctx.save_for_backward(order)
            return values, order

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor, _: Any) -> torch.Tensor:
            (order,) = ctx.saved_tensors
            return torch.zeros_like(g).scatter(-1, order, g)

    def use(self, x: torch.Tensor) -> torch.Tensor:
        values, order = self.Ranked.apply(x)
        return values * (order + 1)


class NoGradientForOneInput(Using):
    class Weighted(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, power: int) -> torch.Tensor:
            ctx.save_for_backward(weight)
            ctx.power = power
            return x * weight**power

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:
            (weight,) = ctx.saved_tensors
            return g * weight**ctx.power, None, None

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Weighted.apply(x, self.second.bias, 2)


class NeedsInputGrad(Using):
    class Choosing(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2 + y

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            return g * (3 if ctx.needs_input_grad[0] else 0), g if ctx.needs_input_grad[1] else None

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Choosing.apply(x, x.detach())


class SetupContext(Using):
    class Cube(Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 4 * g * x * x

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Cube.apply(x)


class SavesAttributes(Using):
    class Scaled(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
            ctx.scale, ctx.shape = scale, x.shape
            return x * scale

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
            return (g * ctx.scale * 2).view(ctx.shape), None

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Scaled.apply(x, 1.5)


class StraightThrough(Using):
    class Round(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return (x * 8).round() / 8

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Round.apply(x)


class GradientReversal(Using):
    class Reverse(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g.neg()

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Reverse.apply(x)


class Nested(Using):
    class Outer(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return Plain.Double.apply(x) + 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 5

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Outer.apply(x)


class AppliedTwice(Using):
    def use(self, x: torch.Tensor) -> torch.Tensor:
        return Plain.Double.apply(Plain.Double.apply(x))


class OnceDifferentiable(Using):
    class Triple(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Triple.apply(x)


class DrawsInForward(Using):
    class Noisy(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            noise = torch.rand_like(x)
            ctx.save_for_backward(noise)
            return x * noise

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (noise,) = ctx.saved_tensors
            return g * noise * 2

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Noisy.apply(x)


class WithAutograd(Using):
    class Inner(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inside = x.detach().requires_grad_()
                result = inside.sin()
            ctx.save_for_backward(inside, result)
            return result.detach()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            inside, result = ctx.saved_tensors
            return torch.autograd.grad(result, inside, g)[0] * 2

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Inner.apply(x)


class Scale:
    value = 1.0


class GlobalReadByBackward(Using):
    """The global number that the backward reads changes during training."""

    class Scaling(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * Scale.value

    def use(self, x: torch.Tensor) -> torch.Tensor:
        return self.Scaling.apply(x)


FORMS = sorted(
    (
        kind
        for kind in list(globals().values())
        if isinstance(kind, type) and issubclass(kind, Using) and kind is not Using
    ),
    key=lambda kind: kind.__name__,
)
