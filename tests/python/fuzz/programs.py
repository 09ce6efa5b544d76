# SPDX-License-Identifier: Apache-2.0
"""Random training graphs as data: a Program is a list of calls over numbered values.

Inputs are small integers stored as floats, and most operators keep integers exact. So results can be compared bit for
bit, whatever the order of the additions. A few operators are inexact on purpose. The first dimension of some inputs is
the batch. No step contains its size, so a program also runs at other batch sizes. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.nn import functional

BATCH = 6
_LARGEST = 512.0
_FLOATS = (torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class Ref:
    """Refers to the value with that number: inputs come first, then one value per step."""

    index: int


@dataclass(frozen=True)
class Step:
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def refs(self) -> list[int]:
        flat = [item for arg in self.args for item in (arg if isinstance(arg, list) else [arg])]
        return [item.index for item in flat if isinstance(item, Ref)]


@dataclass(frozen=True)
class Input:
    """`shape[0] == BATCH` marks the batch dimension. `kind` is "grad", "plain", "buffer" (may be changed) or
    "index"."""

    shape: tuple[int, ...]
    kind: str
    seed: int

    def make(self, batch: int) -> torch.Tensor:
        shape = tuple(batch if size == BATCH else size for size in self.shape)
        generator = torch.Generator().manual_seed(self.seed)
        if self.kind == "index":
            return torch.randint(0, 4, shape, generator=generator)
        value = torch.randint(-3, 4, shape, generator=generator).float()
        return value.requires_grad_() if self.kind == "grad" else value


@dataclass(frozen=True)
class Program:
    seed: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        known = list(values)
        for step in self.steps:
            known.append(step.target(*_filled(step.args, known), **dict(step.kwargs)))
        return tuple(known[index] for index in self.outputs)

    def make_inputs(self, batch: int = BATCH) -> list[torch.Tensor]:
        return [description.make(batch) for description in self.inputs]

    def without_dead_steps(self) -> Program:
        """Returns a program with the same outputs and fewer steps. Calls that change an input in place stay."""
        needed, base = set(self.outputs), len(self.inputs)
        for number in reversed(range(len(self.steps))):
            step = self.steps[number]
            if base + number in needed or _is_in_place(step):
                needed |= {base + number, *step.refs()}
        kept = [number for number in range(len(self.steps)) if base + number in needed]
        new = {**{i: i for i in range(base)}, **{base + old: base + i for i, old in enumerate(kept)}}
        steps = tuple(replace(self.steps[k], args=_renumbered(self.steps[k].args, new)) for k in kept)
        return Program(self.seed, self.inputs, steps, tuple(new[index] for index in self.outputs))

    def __str__(self) -> str:
        lines = [f"# seed {self.seed}"]
        lines += [f"v{i} = input{value.shape} {value.kind}" for i, value in enumerate(self.inputs)]
        for number, step in enumerate(self.steps, start=len(self.inputs)):
            shown = ", ".join(_text(arg) for arg in step.args)
            named = "".join(f", {key}={value}" for key, value in step.kwargs)
            lines.append(f"v{number} = {step.target.__name__}({shown}{named})")
        return "\n".join([*lines, "return " + ", ".join(f"v{index}" for index in self.outputs)])


def generate(seed: int) -> Program:
    """Returns the program of a seed. Every step has been run once, so shapes and types fit."""
    return _Generator(seed).program()


class _Generator:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._inputs = self._make_inputs()
        self._values: list[torch.Tensor] = [value.make(BATCH) for value in self._inputs]
        self._steps: list[Step] = []

    def program(self) -> Program:
        for _ in range(self._random.randint(4, 14)):
            self._grow()
        wanted = [i for i in range(len(self._inputs), len(self._values)) if self._values[i].requires_grad]
        if not wanted:
            self._append(Step(torch.mul, (Ref(0), 2.0)))
            wanted = [len(self._values) - 1]
        chosen = {wanted[-1], *self._random.sample(wanted, min(len(wanted), 2))}
        if len(self._values) - 1 >= len(self._inputs):
            chosen.add(len(self._values) - 1)
        outputs = tuple(self._owned(index) for index in sorted(chosen))
        return Program(self._seed, tuple(self._inputs), tuple(self._steps), outputs).without_dead_steps()

    def _make_inputs(self) -> list[Input]:
        choose = self._random.choice
        width = choose((4, 8))
        shapes: list[tuple[int, ...]] = [
            (BATCH, width),
            (width,),
            (1, width),
            (BATCH, 1),
            (BATCH, 2, width),
            (width, width),
        ]
        inputs = [Input(choose([(BATCH, width), (BATCH, 2, width)]), "grad", self._seed * 31)]
        for number in range(self._random.randint(1, 3)):
            inputs.append(
                Input(choose(shapes), choose(("grad", "grad", "plain", "buffer")), self._seed * 31 + number + 1)
            )
        if self._random.random() < 0.2:
            inputs.append(Input((3,), "index", self._seed * 31 + 9))
        return inputs

    def _grow(self) -> None:
        make = self._random.choices([rule for rule, _ in _RULES], [weight for _, weight in _RULES])[0]
        step = make(self)
        if step is not None and self._append(step):
            value = self._values[-1]
            if value.is_floating_point() and value.numel() and float(value.detach().abs().max()) > _LARGEST:
                self._append(Step(torch.clamp, (Ref(len(self._values) - 1), -8.0, 8.0)))

    def _append(self, step: Step) -> bool:
        try:
            value = step.target(*_filled(step.args, self._values), **dict(step.kwargs))
        except (RuntimeError, IndexError, ValueError):
            return False
        if not isinstance(value, torch.Tensor) or value.numel() == 0 or value.numel() > 4096:
            return False
        self._steps.append(step)
        self._values.append(value)
        return True

    def _owned(self, index: int) -> int:
        """Copies an output that is a view. Graphs whose outputs share memory are not tested here."""
        if self._values[index]._is_view() or any(self._values[index] is other for other in self._values[:index]):
            self._append(Step(torch.clone, (Ref(index),)))
            return len(self._values) - 1
        return index

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda value: value.is_floating_point()) -> Ref | None:
        """Returns a random value that fits, with recent ones more likely."""
        found = [i for i, value in enumerate(self._values) if fits(value)]
        weights = [1 + 3 * (i >= len(self._inputs)) + 4 * (i + 3 >= len(self._values)) for i in found]
        return Ref(self._random.choices(found, weights)[0]) if found else None

    def value(self, ref: Ref) -> torch.Tensor:
        return self._values[ref.index]

    def choose(self, items: Sequence[Any]) -> Any:
        return self._random.choice(items)

    def buffer(self) -> Ref | None:
        found = [i for i, value in enumerate(self._inputs) if value.kind == "buffer"]
        return Ref(self.choose(found)) if found else None


Rule = Callable[[_Generator], Step | None]


def _unary(*targets: Callable[..., Any]) -> Rule:
    def make(g: _Generator) -> Step | None:
        x = g.pick()
        return Step(g.choose(targets), (x,)) if x else None

    return make


def _scalar(g: _Generator) -> Step | None:
    x = g.pick()
    target = g.choose((torch.add, torch.sub, torch.mul, torch.rsub))
    number = g.choose((2.0, 0.5, -1.0) if target is torch.mul else (1.0, -2.0, 0.5, 3))
    return Step(target, (x, number)) if x else None


def _clamp(g: _Generator) -> Step | None:
    x = g.pick()
    return Step(torch.clamp, (x, *g.choose(((-2.0, 2.0), (None, 1.0), (0.0, None))))) if x else None


def _binary(g: _Generator) -> Step | None:
    a, b = g.pick(), g.pick()
    return Step(g.choose((torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum)), (a, b)) if a and b else None


def _compare(g: _Generator) -> Step | None:
    a, b = g.pick(), g.pick()
    target = g.choose((torch.gt, torch.ge, torch.lt, torch.le, torch.eq, torch.ne))
    return Step(target, (a, g.choose((b, 0.0, 1)))) if a and b else None


def _where(g: _Generator) -> Step | None:
    mask, a, b = g.pick(lambda value: value.dtype is torch.bool), g.pick(), g.pick()
    if not (mask and a and b):
        return _compare(g)
    if g.choose((True, False)):
        return Step(torch.masked_fill, (a, mask, g.choose((0.0, -4.0))))
    return Step(torch.where, (mask, a, b))


def _logic(g: _Generator) -> Step | None:
    a, b = (g.pick(lambda value: value.dtype is torch.bool) for _ in range(2))
    return Step(g.choose((torch.logical_and, torch.logical_or, torch.logical_xor)), (a, b)) if a and b else _compare(g)


def _cast(g: _Generator) -> Step | None:
    x = g.pick(lambda value: True)
    return (
        Step(torch.Tensor.to, (x, g.choose((torch.float32, torch.float32, torch.float64, torch.bfloat16))))
        if x
        else None
    )


def _reduce(g: _Generator) -> Step | None:
    x = g.pick(lambda value: value.is_floating_point() and value.dim() > 0)
    if x is None:
        return None
    dim = g.choose(range(-1, g.value(x).dim() - 1))
    target = g.choose((torch.sum, torch.sum, torch.amax, torch.amin, torch.mean))
    if target is torch.mean and g.value(x).shape[dim] not in (2, 4, 8):
        target = torch.sum
    return Step(target, (x, [dim]), (("keepdim", g.choose((True, False))),))


def _sum_all(g: _Generator) -> Step | None:
    x = g.pick()
    return Step(torch.sum, (x,)) if x else None


def _shape(g: _Generator) -> Step | None:
    x = g.pick(lambda value: value.is_floating_point() and value.dim() > 1)
    if x is None:
        return None
    last = g.value(x).shape[-1]
    return g.choose(
        (
            Step(torch.transpose, (x, -1, -2)),
            Step(torch.unsqueeze, (x, g.choose((0, 1, -1)))),
            Step(torch.flip, (x, [-1])),
            Step(torch.narrow, (x, -1, last // 2, max(last // 2, 1))),
            Step(torch.select, (x, -1, last - 1)),
            Step(torch.Tensor.contiguous, (x,)),
            Step(torch.cumsum, (x, -1)),
        )
    )


def _concatenate(g: _Generator) -> Step | None:
    a = g.pick(lambda value: value.is_floating_point() and value.dim() > 0)
    if a is None:
        return None
    rank = g.value(a).dim()
    b = g.pick(lambda value: value.dtype == g.value(a).dtype and value.dim() == rank)
    return Step(torch.cat, ([a, b], -1)) if b else None


def _matrix(g: _Generator) -> Step | None:
    a, b = (g.pick(lambda value: value.dtype is torch.float32 and value.dim() >= 2) for _ in range(2))
    return Step(torch.matmul, (a, b)) if a and b else None


def _gather(g: _Generator) -> Step | None:
    index = g.pick(lambda value: value.dtype is torch.int64 and value.dim() == 1)
    x = g.pick(lambda value: value.is_floating_point() and value.dim() > 1 and value.shape[-1] >= 4)
    return Step(torch.index_select, (x, -1, index)) if index and x else None


def _in_place(g: _Generator) -> Step | None:
    buffer, x = g.buffer(), g.pick()
    if buffer is None:
        return None
    return Step(torch.Tensor.add_, (buffer, g.choose((1.0, 2.0)))) if x else None


def _bounded(target: Callable[..., Any]) -> Rule:
    def make(g: _Generator) -> Step | None:
        x = g.pick(lambda value: value.is_floating_point() and float(value.detach().abs().max()) < 8)
        return Step(target, (x,)) if x else None

    return make


def _softmax(g: _Generator) -> Step | None:
    x = g.pick(lambda value: value.is_floating_point() and value.dim() > 0)
    return Step(g.choose((torch.softmax, torch.log_softmax)), (x, -1)) if x else None


_RULES: tuple[tuple[Rule, int], ...] = (
    (_unary(torch.neg, torch.abs, torch.relu, torch.square, torch.sign, torch.floor, torch.round, torch.trunc), 14),
    (_binary, 24),
    (_scalar, 12),
    (_clamp, 5),
    (_compare, 4),
    (_where, 7),
    (_logic, 2),
    (_cast, 4),
    (_reduce, 10),
    (_sum_all, 1),
    (_shape, 7),
    (_concatenate, 2),
    (_matrix, 2),
    (_gather, 1),
    (_in_place, 1),
    (_bounded(torch.exp), 1),
    (_unary(torch.tanh, torch.sigmoid, functional.gelu, functional.silu, torch.sin), 1),
    (_softmax, 1),
)


def to_graph(program: Program) -> fx.GraphModule:
    """Returns the program as the torch-level graph that Dynamo would pass to a backend, without example values."""
    graph = fx.Graph()
    known = [graph.placeholder(f"l_v{i}_") for i in range(len(program.inputs))]
    for step in program.steps:
        known.append(graph.call_function(step.target, _filled(step.args, known), dict(step.kwargs)))
    graph.output(tuple(known[index] for index in program.outputs))
    return fx.GraphModule(torch.nn.Module(), graph)


def _filled(args: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
    def fill(arg: Any) -> Any:
        if isinstance(arg, list):
            return [fill(item) for item in arg]
        return known[arg.index] if isinstance(arg, Ref) else arg

    return tuple(fill(arg) for arg in args)


def _renumbered(args: Sequence[Any], new: dict[int, int]) -> tuple[Any, ...]:
    def number(arg: Any) -> Any:
        if isinstance(arg, list):
            return [number(item) for item in arg]
        return Ref(new[arg.index]) if isinstance(arg, Ref) else arg

    return tuple(number(arg) for arg in args)


def _is_in_place(step: Step) -> bool:
    name = step.target.__name__
    return name.endswith("_") and not name.endswith("__")


def _text(arg: Any) -> str:
    if isinstance(arg, list):
        return "[" + ", ".join(_text(item) for item in arg) + "]"
    return f"v{arg.index}" if isinstance(arg, Ref) else str(arg)
