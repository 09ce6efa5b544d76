# SPDX-License-Identifier: Apache-2.0
"""Cuts a backward graph into stages, so that gradients can leave while later stages still compute.

A gradient may leave after the last operator that touches its memory or its parameter's memory, because the receiver may
change both. For example, an optimizer may step in a hook. Gradients that are ready are held until they fill a stage.
Each stage is a separate ATen graph:

    stage 0:  saved integers, its saved tensors, tangents        -> its gradients, values for later stages
    stage k:  values from earlier stages, its saved tensors      -> its gradients, values for later stages
"""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from agspeed.backends.joint import Joint, RegionSignature
from agspeed.torch_compat.graphs import outputs_of
from agspeed.torch_compat.operators import OpOverload, schema_of

_aten = torch.ops.aten
_UNDECLARED_VIEWS = (
    _aten._unsafe_view.default,
    _aten.lift.default,
    _aten.unsafe_chunk.default,
    _aten.unsafe_split.Tensor,
    _aten.unsafe_split_with_sizes.default,
)
"""Operators whose results share memory with their input, although their schema does not say so."""
MAX_STAGES = 64
"""The most stages: each costs microseconds, and more stages gain nothing."""


@dataclass(frozen=True)
class Stage:
    """One part of a backward graph."""

    graph: fx.GraphModule
    inputs: tuple[str, ...]
    """The names of the whole graph's values that are this stage's inputs."""
    num_gradients: int
    """The number of leading outputs that are gradients. The other outputs are `carried` to later stages, by name."""
    carried: tuple[str, ...]


@dataclass(frozen=True)
class Stages:
    """A backward graph in parts. The lists are as in runtime/autograd/region_signature.h."""

    parts: tuple[Stage, ...]
    gradient_stages: list[int]
    saved_stages: list[int]


def cut(joint: Joint, stage_bytes: int, most: int = MAX_STAGES) -> Stages | None:
    """Returns the backward graph of `joint` in about `most` stages or fewer, each with at least `stage_bytes` of
    gradients. None if that gives only one stage.
    """
    assert joint.backward is not None and joint.signature is not None
    graph = joint.backward.graph
    ready = _ready_positions(graph.graph, inputs_in_memory_of(joint))
    borders = _borders(ready, stage_bytes, most)
    return _Cutter(graph, joint.signature, ready, borders).cut() if borders else None


def inputs_in_memory_of(joint: Joint) -> list[list[int]]:
    """Returns, for each forward input, the backward inputs that may share its memory because they are saved views."""
    assert joint.forward is not None and joint.signature is not None
    graph, signature = joint.forward.graph.graph, joint.signature
    memory = alias_classes(graph)
    results = outputs_of(graph)
    end = len(results) - signature.num_saved_integers
    saved = [memory[node] for node in results[end - signature.num_saved_tensors : end]]
    return [
        [signature.num_saved_integers + number for number, class_of in enumerate(saved) if class_of is memory[source]]
        for source in graph.find_nodes(op="placeholder")
    ]


def alias_classes(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Returns {node: representative of its alias class}. Nodes that may share memory have the same representative."""
    parent: dict[fx.Node, fx.Node] = {}

    def find(node: fx.Node) -> fx.Node:
        while parent[node] is not node:
            node = parent[node]
        return node

    for node in graph.nodes:
        parent[node] = node
        for source in _may_share(node):
            parent[find(source)] = find(node)
    return {node: find(node) for node in graph.nodes}


def _may_share(node: fx.Node) -> Sequence[fx.Node]:
    """Returns the inputs with which a node's results may share memory."""
    if node.op != "call_function":
        return ()
    if node.target is operator.getitem:
        (source,) = node.all_input_nodes
        return _may_share(source) if isinstance(source.target, OpOverload) else (source,)
    if node.target in _UNDECLARED_VIEWS:
        return node.all_input_nodes
    if not isinstance(node.target, OpOverload):
        return node.all_input_nodes
    schema = schema_of(node.target)
    returned = {name for result in schema.returns if result.alias_info for name in result.alias_info.before_set}
    shared = []
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and returned & set(argument.alias_info.before_set):
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            items = value if isinstance(value, (list, tuple)) else (value,)
            shared += [item for item in items if isinstance(item, fx.Node)]
    return shared


def _ready_positions(graph: fx.Graph, in_memory_of: list[list[int]]) -> dict[fx.Node, int]:
    """Returns {gradient: position of the last node that touches its memory or its parameter's}. Gradients that share
    memory leave together and get the same position.
    """
    memory = alias_classes(graph)
    last_touch: dict[fx.Node, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.op != "output":
            for touched in (node, *node.all_input_nodes):
                last_touch[memory[touched]] = position
    placeholders = graph.find_nodes(op="placeholder")
    gradients = outputs_of(graph)
    ready: dict[fx.Node, int] = {}
    for gradient, numbers in zip(gradients, in_memory_of, strict=True):
        if isinstance(gradient, fx.Node):
            touched = [gradient, *(placeholders[number] for number in numbers)]
            ready[gradient] = max(ready.get(gradient, 0), *(last_touch[memory[node]] for node in touched))
    together: dict[fx.Node, int] = {}
    for gradient, position in ready.items():
        together[memory[gradient]] = max(position, together.get(memory[gradient], 0))
    return {gradient: together[memory[gradient]] for gradient in ready}


def _borders(ready: dict[fx.Node, int], stage_bytes: int, most: int) -> list[int]:
    """Returns the positions after which gradients leave, without the end of the graph."""
    bytes_at: dict[int, int] = {}
    for gradient, position in ready.items():
        bytes_at[position] = bytes_at.get(position, 0) + _num_bytes(gradient)
    wanted = max(stage_bytes, -(-sum(bytes_at.values()) // most))
    borders, held = [], 0
    for position in sorted(bytes_at)[:-1]:
        held += bytes_at[position]
        if held >= wanted:
            borders.append(position)
            held = 0
    return borders


def _num_bytes(gradient: fx.Node) -> int:
    value = gradient.meta["val"]
    sizes: list[Any] = [(size.node.hint or 0) if isinstance(size, torch.SymInt) else int(size) for size in value.shape]
    return int(math.prod(sizes)) * int(value.dtype.itemsize)


class _Cutter:
    """Cuts one backward graph into its stages."""

    def __init__(
        self, graph: fx.GraphModule, signature: RegionSignature, ready: dict[fx.Node, int], borders: list[int]
    ) -> None:
        self._graph, self._signature, self._borders = graph, signature, borders
        self._nodes = [node for node in graph.graph.nodes if node.op != "output"]
        self._placeholders = graph.graph.find_nodes(op="placeholder")
        self._leaves_in = {gradient: bisect.bisect_left(borders, position) for gradient, position in ready.items()}
        self._stage_of: dict[fx.Node, int] = {}
        for position, node in enumerate(self._nodes):
            own = bisect.bisect_left(borders, position)
            self._stage_of[node] = self._stage_of[node.args[0]] if node.target is operator.getitem else own

    def cut(self) -> Stages:
        gradients = outputs_of(self._graph.graph)
        leaving = [self._leaves_in.get(gradient, 0) for gradient in gradients]
        integers = self._signature.num_saved_integers
        saved = self._placeholders[integers : integers + self._signature.num_saved_tensors]
        taken_in = {node: min(self._needed_in(node), default=0) for node in saved}
        parts: list[Stage] = []
        carried: list[fx.Node] = []
        for stage in range(len(self._borders) + 1):
            inputs = [*carried, *(node for node in self._placeholders if taken_in.get(node, 0) == stage)]
            results = [gradient for gradient, number in zip(gradients, leaving, strict=True) if number == stage]
            computed = [node for node in self._nodes if self._stage_of[node] == stage and node.op == "call_function"]
            carried = [node for node in (*inputs, *computed) if max(self._needed_in(node), default=0) > stage]
            parts.append(self._part(inputs, computed, results, carried))
        return Stages(tuple(parts), leaving, list(taken_in.values()))

    def _needed_in(self, node: fx.Node) -> list[int]:
        """Returns the stages that read a node or return it as a gradient."""
        stages = [self._stage_of[user] for user in node.users if user.op != "output"]
        return [*stages, self._leaves_in[node]] if node in self._leaves_in else stages

    def _part(
        self, inputs: list[fx.Node], computed: list[fx.Node], gradients: list[Any], carried: list[fx.Node]
    ) -> Stage:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        read = {source for node in computed for source in node.all_input_nodes} | set(gradients)
        attributes = [node for node in self._nodes if node.op == "get_attr" and node in read]
        for node in (*attributes, *computed):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        results = (*gradients, *carried)
        graph.output(tuple(copies[node] if isinstance(node, fx.Node) else node for node in results))
        names = [tuple(node.name for node in nodes) for nodes in (inputs, carried)]
        return Stage(fx.GraphModule(self._graph, graph), names[0], len(gradients), names[1])
