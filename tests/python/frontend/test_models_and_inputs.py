# SPDX-License-Identifier: Apache-2.0
"""Kinds of modules, inputs and outputs: each trains as in eager with a compiled candidate, or names why it does not."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from tests.python.frontend.differential import as_loss, compare, state
from tests.python.support.pairs import every
from tests.python.support.small_models import STEPS, Forward, Linear, Wrap, data, loop

Script = Callable[[Wrap], list[Any]]


# --- calling conventions ----------------------------------------------------------------------------------------------


def keyword_arguments(wrap: Wrap) -> list[Any]:
    def body(
        layer: nn.Module, x: torch.Tensor, *, scale: float = 1.0, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        out = layer(x) * scale
        return out if mask is None else out * mask

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i), scale=0.5, mask=data(4, 1) > 0)))


def keyword_that_changes(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor, double: bool = False) -> torch.Tensor:
        return layer(layer(x)) if double else layer(x)

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i), double=i % 2 == 1)))


def nested_containers(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
        first, (second, third) = batch["list"][0], batch["tuple"]
        return {"out": [layer(first), (layer(second), OrderedDict(third=layer(third) + 1))], "constant": "text", "n": 3}

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        result = model({"list": [data(4, 8, seed=step)], "tuple": (data(4, 8, seed=9), data(4, 8, seed=step + 1))})
        assert result["constant"] == "text" and result["n"] == 3
        assert type(result["out"][1][1]) is OrderedDict
        return as_loss(result["out"][0] + result["out"][1][0] + result["out"][1][1]["third"])

    return loop(wrap, Linear(body), loss_of)


@dataclass
class Result:
    loss: torch.Tensor
    logits: torch.Tensor | None = None


Pair = namedtuple("Pair", "left right")


def dataclass_result(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor) -> Result:
        out = layer(x)
        return Result(loss=out.square().mean(), logits=out)

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        result = model(data(4, 8, seed=step))
        assert type(result) is Result and result.logits.shape == (4, 8)
        return result.loss

    return loop(wrap, Linear(body), loss_of)


def namedtuple_result(wrap: Wrap) -> list[Any]:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        result = model(data(4, 8, seed=step))
        assert type(result) is Pair
        return as_loss(result.left) + as_loss(result.right)

    return loop(wrap, Linear(lambda layer, x: Pair(layer(x), layer(-x))), loss_of)


def model_output_result(wrap: Wrap) -> list[Any]:
    from transformers.modeling_outputs import SequenceClassifierOutput

    def body(layer: nn.Module, x: torch.Tensor) -> Any:
        out = layer(x)
        return SequenceClassifierOutput(loss=out.square().mean(), logits=out)

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        result = model(data(4, 8, seed=step))
        assert type(result) is SequenceClassifierOutput and list(result) == ["loss", "logits"]
        assert result["logits"] is result.logits
        return result.loss

    return loop(wrap, Linear(body), loss_of)


def none_and_python_results(wrap: Wrap) -> list[Any]:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        out, nothing, size = model(data(4, 8, seed=step))
        assert nothing is None and size == 4
        return as_loss(out)

    return loop(wrap, Linear(lambda layer, x: (layer(x), None, x.shape[0])), loss_of)


# --- inputs -----------------------------------------------------------------------------------------------------------


def complex_input(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, z: torch.Tensor) -> torch.Tensor:
        return layer((z * z.conj()).real + z.imag)

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(torch.complex(data(4, 8, seed=i), data(4, 8)))))


def complex_parameters(wrap: Wrap) -> list[Any]:
    class Rotate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phase = nn.Parameter(torch.complex(data(8), data(8, seed=4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(self.phase * x).sum(-1)

    return loop(wrap, Rotate(), lambda m, i: as_loss(m(data(4, 8, seed=i))))


def integer_input(wrap: Wrap) -> list[Any]:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 10)

        def forward(self, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(tokens) * weights.unsqueeze(-1)) * (tokens > 3).unsqueeze(-1)

    tokens = torch.arange(12).remainder(10).reshape(3, 4)
    return loop(wrap, Tokens(), lambda m, i: as_loss(m((tokens + i) % 10, torch.full((3, 4), 2, dtype=torch.int32))))


def strided_input(wrap: Wrap) -> list[Any]:
    return loop(wrap, Linear(lambda layer, x: layer(x)), lambda m, i: as_loss(m(data(16, 8, seed=i).t()[::2, :8])))


def strides_that_change(wrap: Wrap) -> list[Any]:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        batch = data(8, 8, seed=step)
        return as_loss(model(batch.t() if step % 2 else batch))

    return loop(wrap, Linear(lambda layer, x: layer(x).relu()), loss_of)


def expanded_input(wrap: Wrap) -> list[Any]:
    return loop(wrap, Linear(lambda layer, x: layer(x)), lambda m, i: as_loss(m(data(1, 8, seed=i).expand(4, 8))))


def channels_last(wrap: Wrap) -> list[Any]:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model = model.to(memory_format=torch.channels_last)

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        out = model(data(2, 3, 9, 9, seed=step).contiguous(memory_format=torch.channels_last))
        assert out.is_contiguous(memory_format=torch.channels_last)
        return as_loss(out)

    return loop(wrap, model, loss_of)


def empty_batch(wrap: Wrap) -> list[Any]:
    return loop(wrap, Linear(lambda layer, x: layer(x)), lambda m, i: m(data(4 if i % 2 else 0, 8, seed=i)).sum())


def scalar_tensor_and_number(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor, scale: torch.Tensor, power: int, rate: float) -> torch.Tensor:
        return layer(x) * scale**power + rate

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i), torch.tensor(0.5 + i), i, 0.1 * i)))


def gradient_of_the_input(wrap: Wrap) -> list[Any]:
    model = wrap(Linear(lambda layer, x: torch.tanh(layer(x))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(STEPS):
        batch = data(4, 8, seed=step).requires_grad_()
        optimizer.zero_grad()
        as_loss(model(batch)).backward()
        optimizer.step()
        seen.append(batch.grad)
    return [*seen, *state(model)]


def in_place_on_the_input(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return layer(x)

    model = wrap(Linear(body))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(STEPS):
        batch = data(4, 8, seed=step)
        optimizer.zero_grad()
        as_loss(model(batch)).backward()
        optimizer.step()
        seen.append(batch)
    return [*seen, *state(model)]


def state_kept_in_a_buffer(wrap: Wrap) -> list[Any]:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            self.mean.lerp_(x.detach().mean(0), 0.1)
            return self.layer(x - self.mean)

    return loop(wrap, Counting(), lambda m, i: as_loss(m(data(4, 8, seed=i))))


def sparse_embedding_gradients(wrap: Wrap) -> list[Any]:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 2)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(tokens))

    model = wrap(Sparse())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layouts = []
    for step in range(STEPS):
        optimizer.zero_grad()
        as_loss(model(torch.tensor([1, step, 3, 3]))).backward()
        layouts.append(str(model.embed.weight.grad.layout))
        optimizer.step()
    return [*layouts, *state(model)]


# --- code inside the model --------------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2.5 * x**2  # not the derivative, so that it shows that this code ran


def custom_autograd_function(wrap: Wrap) -> list[Any]:
    return loop(wrap, Linear(lambda layer, x: Cube.apply(layer(x))), lambda m, i: as_loss(m(data(4, 8, seed=i))))


@torch.library.custom_op("agspeed_tests::shift", mutates_args=())
def shift(x: torch.Tensor, amount: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() + amount)


@shift.register_fake
def _(x: torch.Tensor, amount: float) -> torch.Tensor:
    return torch.empty_like(x)


shift.register_autograd(lambda ctx, gradient: (gradient * 0.5, None))


def custom_operator(wrap: Wrap) -> list[Any]:
    return loop(wrap, Linear(lambda layer, x: shift(layer(x), 1.5).relu()), lambda m, i: as_loss(m(data(4, 8, seed=i))))


def generate_calls_the_model(wrap: Wrap) -> list[Any]:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 10)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(tokens).cumsum(1))

        @torch.no_grad()
        def generate(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
            for _ in range(count):
                tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], 1)
            return tokens

    model = wrap(Language())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        as_loss(model(torch.tensor([[1, 2, 3, step]]))).backward()
        optimizer.step()
        seen.append(model.generate(torch.tensor([[1, 2]]), 4))
    return [*seen, *state(model)]


def method_that_trains(wrap: Wrap) -> list[Any]:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu()

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return as_loss(self(x))

    return loop(wrap, WithLoss(), lambda m, i: m.training_step(data(4, 8, seed=i)))


def recurrent_layers(wrap: Wrap) -> list[Any]:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.GRUCell(8, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.zeros(x.shape[0], 8)
            for step in x.unbind(1):
                hidden = self.cell(step, hidden)
            return self.out(hidden)

    return loop(wrap, Recurrent(), lambda m, i: as_loss(m(data(4, 3, 8, seed=i))))


COMPILED: list[Script] = [
    keyword_arguments,
    keyword_that_changes,
    nested_containers,
    dataclass_result,
    namedtuple_result,
    model_output_result,
    none_and_python_results,
    complex_input,
    complex_parameters,
    integer_input,
    strided_input,
    strides_that_change,
    expanded_input,
    channels_last,
    empty_batch,
    scalar_tensor_and_number,
    gradient_of_the_input,
    in_place_on_the_input,
    state_kept_in_a_buffer,
    sparse_embedding_gradients,
    custom_autograd_function,
    custom_operator,
    generate_calls_the_model,
    method_that_trains,
    recurrent_layers,
]


@pytest.mark.parametrize("script", every(2, COMPILED), ids=lambda script: script.__name__)
def test_trains_as_eager_with_a_compiled_candidate(script: Script) -> None:
    tolerance = 1e-6 if script is recurrent_layers else 0.0  # gradients of reused weights are added in another order
    outcome = compare(script, tolerance=tolerance)
    assert outcome.ran("aot"), outcome.reasons()


# --- outputs that alias -----------------------------------------------------------------------------------------------


def aliasing(body: Forward, same: tuple[tuple[int, int], ...] = ()) -> Script:
    """`body(layer, x)` returns a tuple. Indices in `same` must be one object or share storage; -1 means the input."""

    def script(wrap: Wrap) -> list[Any]:
        seen = []

        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            batch = data(4, 8, seed=step)
            outputs = model(batch)
            tensors = [*outputs, batch]
            seen.append([(tensors[a] is tensors[b], tensors[a].data_ptr() == tensors[b].data_ptr()) for a, b in same])
            return sum(as_loss(out) for out in outputs if out.requires_grad)  # type: ignore[return-value]

        return [*loop(wrap, Linear(body), loss_of), seen]

    return script


ALIASING = {
    "output is the input": aliasing(lambda layer, x: (layer(x), x), ((1, -1),)),
    "output views the input": aliasing(lambda layer, x: (layer(x), x[:2]), ((1, -1),)),
    "output views an intermediate": aliasing(
        lambda layer, x: (lambda h: (h, h[:2], h.t()))(layer(x)), ((0, 1), (0, 2))
    ),
    "same output twice": aliasing(lambda layer, x: (lambda h: (h, h))(layer(x)), ((0, 1),)),
    "output is a parameter": aliasing(lambda layer, x: (layer(x), layer.weight), ()),
    "output views a parameter": aliasing(lambda layer, x: (layer(x), layer.weight.t()), ()),
    "detached alias of an output": aliasing(lambda layer, x: (lambda h: (h, h.detach()))(layer(x)), ((0, 1),)),
}


@pytest.mark.parametrize("name", ALIASING)
def test_aliases_are_as_in_eager(name: str) -> None:
    outcome = compare(ALIASING[name])
    aliased = "an output of the region aliases another output"
    assert outcome.ran("aot") or aliased in outcome.reasons(), outcome.reasons()


def in_place_on_an_input_that_needs_grad(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return layer(x)

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(m.layer(data(4, 8, seed=i)))))


def one_tensor_passed_twice(wrap: Wrap) -> list[Any]:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        batch = data(4, 8, seed=step)
        return as_loss(model(batch, batch)) + as_loss(model(batch, batch[:2]))

    return loop(wrap, Linear(lambda layer, x, y: layer(x).mean() + layer(y)), loss_of)


def in_place_on_overlapping_inputs(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return layer(x).mean() + layer(y)

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        batch = data(4, 8, seed=step)
        return as_loss(model(batch[:3], batch[1:]))

    return loop(wrap, Linear(body), loss_of)


def buffer_replaced_by_itself(wrap: Wrap) -> list[Any]:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.layer(x) / self.calls

    return loop(wrap, Counting(), lambda m, i: as_loss(m(data(4, 8, seed=i))))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (buffer_replaced_by_itself, ""),
        (in_place_on_an_input_that_needs_grad, "requires grad and is changed in place"),
        (one_tensor_passed_twice, ""),
        (in_place_on_overlapping_inputs, "two inputs of the region are the same tensor or share storage"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_inputs_that_are_shared_or_changed(script: Script, reason: str) -> None:
    outcome = compare(script, tolerance=1e-6)
    explained = bool(reason) and any(reason in found for found in outcome.reasons())
    assert outcome.ran("aot") or explained, outcome.reasons()
