# SPDX-License-Identifier: Apache-2.0
"""Cuts graphs at outputs from which other outputs are computed, as in ``f = body(x); return f, head(f)``.

In eager the gradient of `f` includes the part from ``head(f)``: hooks of `f`, `f.grad` and ``autograd.grad(y, f)`` need
the whole gradient. A region has one autograd node for all outputs, and inside it that part never becomes part of `f`'s
gradient. So `cut` cuts a graph after each such output, in the graph's order. The next piece takes the output as an
input, and autograd adds up the parts between the pieces' nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from agspeed.errors import UnsupportedError

MAX_PIECES = 16
"""A graph that needs more pieces runs eagerly: each piece is compiled and timed on its own."""

_Piece = tuple[Callable[..., Sequence[Any]], list[int]]


def cut(gm: fx.GraphModule, make_region: Callable[[fx.GraphModule], Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a callable that runs a graph: the region that `make_region` makes of it, or one region for each piece.

    Raises: UnsupportedError if the graph cannot be cut.
    """
    borders = _linked_outputs(gm)
    if not borders:
        return make_region(gm)
    if len(borders) >= MAX_PIECES:
        raise UnsupportedError(f"{len(borders)} of its outputs are computed from each other, more than {MAX_PIECES}")
    return _Chain(gm, borders, make_region)


def _linked_outputs(gm: fx.GraphModule) -> list[fx.Node]:
    """Returns the outputs from which other outputs are computed, in the graph's order."""
    outputs = {value for value in _outputs(gm) if isinstance(value, fx.Node) and _requires_grad(value)}
    linked = {value for value in outputs if value.op != "placeholder" and _reaches(value, outputs - {value})}
    return [node for node in gm.graph.nodes if node in linked]


def _outputs(gm: fx.GraphModule) -> Sequence[Any]:
    return gm.graph.output_node().args[0]  # type: ignore[return-value]


def _reaches(start: fx.Node, goals: set[fx.Node]) -> bool:
    """Returns whether a gradient of one of `goals` flows through `start`."""
    seen, waiting = {start}, [start]
    while waiting:
        for user in waiting.pop().users:
            if user in goals:
                return True
            if user not in seen and _requires_grad(user):
                seen.add(user)
                waiting.append(user)
    return False


def _requires_grad(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    items = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(item, torch.Tensor) and item.requires_grad for item in items)


class _Chain:
    """Runs the pieces of a graph one after the other.

    Values are numbered: the graph's inputs, then the results of each piece.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        borders: Sequence[fx.Node],
        make_region: Callable[[fx.GraphModule], Callable[..., Any]],
    ) -> None:
        numbers = {node: number for number, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
        self._num_inputs = len(numbers)
        self._pieces: list[_Piece] = []
        for nodes in _split(gm, borders):
            inputs, results = _ends(gm, nodes)
            self._pieces.append((make_region(_piece(gm, nodes, inputs, results)), [numbers[node] for node in inputs]))
            numbers |= {node: len(numbers) + at for at, node in enumerate(results)}
        self._outputs = [
            (numbers[value], None) if isinstance(value, fx.Node) else (None, value) for value in _outputs(gm)
        ]

    def __call__(self, *args: Any) -> Sequence[Any]:
        values = list(args)
        for run, inputs in self._pieces:
            values += run(*[values[number] for number in inputs])
        return tuple(constant if number is None else values[number] for number, constant in self._outputs)


def _split(gm: fx.GraphModule, borders: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Returns the operators of each piece. A piece ends with a border; getitem nodes stay in their source's piece."""
    pieces: list[list[fx.Node]] = [[]]
    place: dict[fx.Node, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        source = node.args[0] if node.target is operator.getitem else None
        holds_items = isinstance(source, fx.Node) and isinstance(source.meta.get("example_value"), list | tuple)
        piece = place[source] if holds_items and source in place else pieces[-1]
        piece.append(node)
        place[node] = piece
        if node in borders:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _ends(gm: fx.GraphModule, nodes: Sequence[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Returns a piece's inputs and the results that others use, in the graph's order. Raises: UnsupportedError."""
    inside = set(nodes)
    taken = {source for node in nodes for source in node.all_input_nodes if source.op != "get_attr"} - inside
    sizes = [node for node in gm.graph.find_nodes(op="placeholder") if _is_size(node)]
    inputs = [node for node in gm.graph.nodes if node in taken or node in sizes]
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    for node in results:
        if not isinstance(node.meta.get("example_value"), torch.Tensor | torch.SymInt | int):
            raise UnsupportedError(f"an output that others are computed from cuts {node.name}, which is no tensor")
    return inputs, results


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymInt)


def _piece(
    gm: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], results: Sequence[fx.Node]
) -> fx.GraphModule:
    graph, copies = fx.Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
        if node.op != "placeholder":
            copies[node].meta["example_value"] = _as_input(node.meta["example_value"])
    for node in nodes:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source not in copies:
                copies[source] = graph.node_copy(source)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    return fx.GraphModule(gm, graph)


def _as_input(value: Any) -> Any:
    """Returns the example value of a result as one of an input: detached, with the same requires_grad."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
