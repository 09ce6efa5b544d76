# SPDX-License-Identifier: Apache-2.0
"""Systematic mutants: every operator of a correct ATen graph, changed in every way that a rule below describes.

A mutant names the node and the rule, so a failure says exactly what was changed. A comparison in float64 decides,
independently of the gate, whether a mutant is equivalent to its original. It runs both on several data sets: integers
in a wide range, for which arithmetic is exact and ties occur, and reals.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_SWAPS: dict[Any, tuple[Any, ...]] = {
    aten.add.Tensor: (aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default),
    aten.sub.Tensor: (aten.add.Tensor, aten.mul.Tensor),
    aten.mul.Tensor: (aten.div.Tensor, aten.add.Tensor),
    aten.div.Tensor: (aten.mul.Tensor,),
    aten.maximum.default: (aten.minimum.default, aten.add.Tensor),
    aten.minimum.default: (aten.maximum.default,),
    aten.exp.default: (aten.expm1.default, aten.exp2.default),
    aten.log.default: (aten.log1p.default, aten.log2.default),
    aten.log1p.default: (aten.log.default,),
    aten.tanh.default: (aten.sigmoid.default, aten.erf.default, aten.atan.default),
    aten.sigmoid.default: (aten.tanh.default, aten.hardsigmoid.default),
    aten.erf.default: (aten.tanh.default, aten.erfc.default),
    aten.relu.default: (aten.abs.default, aten.gelu.default, aten.leaky_relu.default),
    aten.gelu.default: (aten.silu.default, aten.relu.default),
    aten.silu.default: (aten.gelu.default, aten.hardswish.default),
    aten.sqrt.default: (aten.rsqrt.default, aten.abs.default),
    aten.rsqrt.default: (aten.sqrt.default, aten.reciprocal.default),
    aten.sin.default: (aten.cos.default,),
    aten.cos.default: (aten.sin.default,),
    aten.abs.default: (aten.neg.default, aten.relu.default),
    aten.neg.default: (aten.abs.default,),
    aten.gt.Scalar: (aten.ge.Scalar, aten.lt.Scalar),
    aten.le.Scalar: (aten.lt.Scalar, aten.gt.Scalar),
    aten.sum.dim_IntList: (aten.mean.dim, aten.amax.default),
    aten.mean.dim: (aten.sum.dim_IntList, aten.amin.default),
    aten.amax.default: (aten.amin.default, aten.sum.dim_IntList),
    aten.amin.default: (aten.amax.default,),
    aten._softmax.default: (aten._log_softmax.default,),
    aten._log_softmax.default: (aten._softmax.default,),
}


@dataclass(frozen=True)
class Mutant:
    """A mutated graph and a description of the change."""

    graph: fx.GraphModule
    what: str


Change = Callable[[fx.Node], None]


def mutants(gm: fx.GraphModule) -> Iterator[Mutant]:
    """Yields every mutant of `gm` in a fixed order. `gm` is not changed."""
    for index, node in enumerate(gm.graph.nodes):
        if node.op != "call_function":
            continue
        for rule, change in _changes(node):
            mutated = copy.deepcopy(gm)
            change(list(mutated.graph.nodes)[index])
            mutated.graph.lint()
            mutated.recompile()
            yield Mutant(mutated, f"{node.format_node()}: {rule}")


def _changes(node: fx.Node) -> Iterator[tuple[str, Change]]:
    for other in _SWAPS.get(node.target, ()):
        yield f"{other} instead", lambda n, other=other: setattr(n, "target", other)
    yield from _argument_changes(node)
    yield from _term_changes(node)
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        yield from ((rule, _after(make)) for rule, make in _RESULT_CHANGES.items() if _fits(rule, value))


def _argument_changes(node: fx.Node) -> Iterator[tuple[str, Change]]:
    """Perturbs constants and changes dimensions."""
    for position, value in enumerate(node.args):
        for text, changed in _other_values(value, _rank(node.args[0] if node.args else None)):
            yield f"argument {position} {text}", lambda n, p=position, v=changed: n.update_arg(p, v)
    for key, value in node.kwargs.items():
        if not isinstance(value, torch.dtype | torch.device):
            for text, changed in _other_values(value, 0):
                yield f"{key} {text}", lambda n, k=key, v=changed: n.update_kwarg(k, v)


def _other_values(value: Any, rank: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        yield f"{not value}", not value
    elif isinstance(value, float):
        yield "times 1.01", value * 1.01
        yield "plus 0.001", value + 0.001
        yield "negated", -value
    elif isinstance(value, int):
        yield "plus 1", value + 1
        yield "minus 1", value - 1
    elif isinstance(value, list) and value and all(type(item) is int for item in value) and rank > 1:
        yield "other dimension", [(item + 1) % rank for item in value]


def _term_changes(node: fx.Node) -> Iterator[tuple[str, Change]]:
    """Drops a term and swaps arguments."""
    tensors = [i for i, arg in enumerate(node.args) if isinstance(arg, fx.Node) and _shape(arg) is not None]
    for position in tensors:
        arg = node.args[position]
        assert isinstance(arg, fx.Node)
        same = _shape(arg) == _shape(node) and arg.meta["val"].dtype == node.meta["val"].dtype
        if same:
            yield f"replaced by argument {position}", lambda n, p=position: n.replace_all_uses_with(n.args[p])
    for a, b in itertools.pairwise(tensors):
        if _shape(node.args[a]) == _shape(node.args[b]) and node.args[a] is not node.args[b]:
            yield f"arguments {a} and {b} swapped", lambda n, a=a, b=b: _swap(n, a, b)


def _swap(node: fx.Node, a: int, b: int) -> None:
    args = list(node.args)
    args[a], args[b] = args[b], args[a]
    node.args = tuple(args)


def _first_row_zeroed(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:1] * 0, x[1:]])


def _element_off(x: torch.Tensor) -> torch.Tensor:
    return x + torch.zeros_like(x).view(-1).index_fill(0, torch.tensor([x.numel() // 2]), 0.01).view(x.shape)


def _gradient_scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 1.001 - x.detach() * 0.001


_RESULT_CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scaled by 1.001": lambda x: x * 1.001,
    "shifted by 0.001": lambda x: x + 0.001,
    "rounded to bfloat16": lambda x: x.to(torch.bfloat16).to(x.dtype),
    "one element off by 0.01": _element_off,
    "gradient cut": lambda x: x.detach(),
    "gradient scaled by 1.001": _gradient_scaled,
    "rolled along the last dimension": lambda x: x.roll(1, -1),
    "first row zeroed": _first_row_zeroed,
    "fused with its neighbour": lambda x: (x + x.roll(1, 0)) / 2,
}


def _fits(rule: str, value: torch.Tensor) -> bool:
    needs_rows = rule in ("rolled along the last dimension", "first row zeroed", "fused with its neighbour")
    return not needs_rows or (value.dim() > 0 and value.shape[-1] > 1 and value.shape[0] > 1)


def _after(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def insert(node: fx.Node) -> None:
        with node.graph.inserting_after(node):
            changed = node.graph.call_function(change, (node,))
        node.replace_all_uses_with(changed, delete_user_cb=lambda user: user is not changed)

    return insert


def _shape(value: Any) -> tuple[int, ...] | None:
    meta = value.meta.get("val") if isinstance(value, fx.Node) else None
    return tuple(meta.shape) if isinstance(meta, torch.Tensor) else None


def _rank(value: Any) -> int:
    shape = _shape(value)
    return len(shape) if shape is not None else 0


def equivalent(a: fx.GraphModule, b: fx.GraphModule, data: Sequence[Sequence[torch.Tensor]]) -> bool:
    """True if both graphs and their gradients agree in float64 on all of `data`, up to the last few bits."""
    return all(_agree(_evaluate(a, inputs), _evaluate(b, inputs)) for inputs in data)


def _evaluate(gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None] | str:
    arguments = [x.double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    leaves = [x for x in arguments if x.requires_grad]
    try:
        outputs = gm(*arguments)
        total = sum((o.double() * _weights(o)).sum() for o in outputs if o.is_floating_point() and o.requires_grad)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, torch.Tensor) else ()
    except (RuntimeError, IndexError, TypeError) as error:
        return type(error).__name__
    return [*(o.detach() for o in outputs), *gradients]


def _weights(value: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64).view(value.shape)


def _agree(a: list[torch.Tensor | None] | str, b: list[torch.Tensor | None] | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))


def _same(x: torch.Tensor | None, y: torch.Tensor | None) -> bool:
    if x is None or y is None:
        return x is y
    if x.shape != y.shape or x.dtype != y.dtype or x.stride() != y.stride():
        return False
    return torch.allclose(x.double(), y.double(), rtol=1e-13, atol=1e-13, equal_nan=True)
