# SPDX-License-Identifier: Apache-2.0
"""Cuts graphs at outputs from which other outputs are computed, as in ``f = body(x); return f, head(f)``.

In eager the gradient of `f` includes the part from ``head(f)``: hooks of `f`, `f.grad` and ``autograd.grad(y, f)`` need
the whole gradient. A region has one autograd node for all outputs, and inside it that part never becomes part of `f`'s
gradient. So `cut` cuts a graph after such outputs, before the first operator that uses one, in the graph's order. The
next piece takes the output as an input, and autograd adds up the parts between the pieces' nodes.

Example: transformers returns the keys and values of each layer. A model of 3 layers has 4 pieces.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from agspeed.backends.base import Runner
from agspeed.errors import UnsupportedError
from agspeed.frontend.target import UserCall
from agspeed.torch_compat import memory
from agspeed.torch_compat.graphs import outputs_of

MAX_PIECES = 64
"""A graph that needs more pieces runs eagerly: each piece is compiled and timed on its own."""

_VIEWS = frozenset(
    (
        *("chunk", "expand", "flatten", "getitem", "narrow", "permute", "reshape", "select", "split", "squeeze", "t"),
        *("transpose", "unflatten", "unsqueeze", "view"),
    )
)
"""Operators that may return views of their first argument. They cost next to nothing."""

_Piece = tuple[Runner, list[int]]


def cut(gm: fx.GraphModule, make_region: Callable[[fx.GraphModule], UserCall]) -> UserCall:
    """Returns a callable that runs a graph: the region that `make_region` makes of it, or one region for each piece.

    Raises: UnsupportedError if the graph cannot be cut.
    """
    borders = _linked_outputs(gm)
    if not borders:
        return make_region(gm)
    pieces = _split(gm, borders)
    if len(pieces) > MAX_PIECES:
        raise UnsupportedError(
            f"its outputs are computed from each other in {len(pieces)} steps, more than {MAX_PIECES}"
        )
    return _Chain(gm, pieces, make_region)


def _linked_outputs(gm: fx.GraphModule) -> list[fx.Node]:
    """Returns the outputs from which other outputs are computed, in the graph's order."""
    outputs = {value for value in outputs_of(gm.graph) if isinstance(value, fx.Node) and _requires_grad(value)}
    linked = {value for value in outputs if value.op != "placeholder" and _reaches(value, outputs - {value})}
    return [node for node in gm.graph.nodes if node in linked]


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
    return any(tensor.requires_grad for tensor in _tensors(node))


class _Chain:
    """Runs the pieces of a graph one after the other.

    Values are numbered: the graph's inputs, then the results of each piece.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        pieces: Sequence[list[fx.Node]],
        make_region: Callable[[fx.GraphModule], UserCall],
    ) -> None:
        numbers = {node: number for number, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
        self._pieces: list[_Piece] = []
        whole = [_repeated_views(gm, nodes) + nodes for nodes in pieces]
        inputs_of = [_inputs(gm, nodes) for nodes in whole]
        taken = {node for inputs in inputs_of for node in inputs}.union(outputs_of(gm.graph))
        for own, nodes, inputs in zip(pieces, whole, inputs_of, strict=True):
            results = [node for node in own if node in taken]
            _check(results)
            self._pieces.append((make_region(_piece(gm, nodes, inputs, results)), [numbers[node] for node in inputs]))
            numbers |= {node: len(numbers) + at for at, node in enumerate(results)}
        self._outputs = [
            (numbers[value], None) if isinstance(value, fx.Node) else (None, value) for value in outputs_of(gm.graph)
        ]

    def __call__(self, *args: Any) -> Sequence[object]:
        values = list(args)
        for run, inputs in self._pieces:
            values += run(*[values[number] for number in inputs])
        return tuple(constant if number is None else values[number] for number, constant in self._outputs)


def _split(gm: fx.GraphModule, borders: Collection[fx.Node]) -> list[list[fx.Node]]:
    """Returns the operators of each piece. No operator uses a border of its own piece, and a piece ends with a border.
    getitem nodes stay in their source's piece."""
    last = _last_borders(gm, borders)
    pieces: list[list[fx.Node]] = [[]]
    place: dict[fx.Node, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        source = node.args[0] if node.target is operator.getitem else None
        holds_items = isinstance(source, fx.Node) and isinstance(source.meta.get("example_value"), list | tuple)
        place[node] = place[source] if holds_items and source in place else pieces[-1]
        place[node].append(node)
        if node in last:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _last_borders(gm: fx.GraphModule, borders: Collection[fx.Node]) -> set[fx.Node]:
    """Returns the border that ends each piece: the last one before an operator that uses a border of the piece. A cut
    right behind a border leaves blocks such as ``torch.no_grad()``, which follow it, in one piece."""
    last: set[fx.Node] = set()
    present: list[fx.Node] = []  # the borders of the present piece
    for node in gm.graph.nodes:
        if node.op != "output" and not set(present).isdisjoint(node.all_input_nodes):
            last.add(present[-1])
            present = []
        if node in borders:
            present.append(node)
    return last


def _repeated_views(gm: fx.GraphModule, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns operators of earlier pieces that a piece repeats: views are made again from their base. So the earlier
    piece returns the base alone, and not several tensors that share its memory."""
    repeated: set[fx.Node] = set()
    kept = {*nodes, *outputs_of(gm.graph)}
    waiting = [source for node in nodes for source in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node not in repeated and node not in kept and _is_view(node):
            repeated.add(node)
            waiting += node.all_input_nodes
    return [node for node in gm.graph.nodes if node in repeated]


def _is_view(node: fx.Node) -> bool:
    """Returns whether an operator returns views of its first argument, whose memory no operator writes to. Views that
    were made without gradients, as under ``torch.no_grad()``, do not count: made again, they would have them."""
    if node.op not in ("call_function", "call_method") or _name(node) not in _VIEWS:
        return False
    views, base = _tensors(node), _tensors(node.all_input_nodes[0])
    if not views or not base or any(view._version > 0 for view in views):
        return False
    storages = {memory.StorageWeakRef(tensor.untyped_storage()) for tensor in (*views, *base)}
    return len(storages) == 1 and len({tensor.requires_grad for tensor in (*views, *base)}) == 1


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("example_value")
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, torch.Tensor)]


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _inputs(gm: fx.GraphModule, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns a piece's inputs in the graph's order. Each piece takes all symbolic sizes."""
    inside = set(nodes)
    taken = {source for node in nodes for source in node.all_input_nodes if source.op != "get_attr"} - inside
    return [node for node in gm.graph.nodes if node in taken or (node.op == "placeholder" and _is_size(node))]


def _check(results: Sequence[fx.Node]) -> None:
    for node in results:
        if not isinstance(node.meta.get("example_value"), torch.Tensor | torch.SymInt | int):
            raise UnsupportedError(f"an output that others are computed from cuts {node.name}, which is not a tensor")


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


def _as_input(value: object) -> object:
    """Returns the example value of a result as one of an input: detached, with the same requires_grad."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
