# SPDX-License-Identifier: Apache-2.0
"""Gives the convolutions of an ATen graph channels-last images, as far as that needs no copies between them.

Convolutions and the operators between them that keep a layout form groups: element-wise operators, batch norm, pooling,
resampling, `cat`. A group is changed if one of its convolutions may gain: its filter has several pixels, it is not
depthwise, and it computes many pixels for its number of channels. Convolutions that would lose keep their layout, and
so does the work behind them. Example, with the layout of each tensor:

    x (contiguous) -> conv3x3 -> batch_norm -> relu -> conv3x3 -> view          # before: all contiguous
    x (contiguous) -> clone -> conv3x3 -> batch_norm -> relu -> conv3x3 -> clone -> view
                        channels-last ......................................  contiguous

Clones stand only at the borders of a group, so all other operators, and the outputs of the graph, keep their strides.
Random numbers are never drawn for a tensor inside a group, because its elements have another order in memory.

The graph is functional: no operator changes a tensor that another one reads. So clones never change a value. The
strides inside a group are the ones that torch's operators give to fake tensors.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from agspeed.errors import UnsupportedError
from agspeed.torch_compat.operators import OpOverload, schema_of
from agspeed.torch_compat.shapes import fake_mode_of, mode_of, without_guards

_aten = torch.ops.aten
_CONVOLUTIONS: dict[Any, int] = {_aten.convolution.default: 1, _aten.convolution_backward.default: 2}
"""{operator: the position of its filter among the arguments}."""
_KEEPING = frozenset(
    {
        *_CONVOLUTIONS,
        _aten._adaptive_avg_pool2d.default,
        _aten._adaptive_avg_pool2d_backward.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._native_batch_norm_legit_functional.default,
        _aten._native_batch_norm_legit_no_training.default,
        _aten._to_copy.default,
        _aten._upsample_nearest_exact2d.default,
        _aten._upsample_nearest_exact2d_backward.default,
        _aten.alias.default,
        _aten.avg_pool2d.default,
        _aten.avg_pool2d_backward.default,
        _aten.cat.default,
        _aten.constant_pad_nd.default,
        _aten.detach.default,
        _aten.elu_backward.default,
        _aten.hardswish_backward.default,
        _aten.hardtanh_backward.default,
        _aten.leaky_relu_backward.default,
        _aten.max_pool2d_with_indices.default,
        _aten.max_pool2d_with_indices_backward.default,
        _aten.mean.dim,
        _aten.native_batch_norm_backward.default,
        _aten.sum.dim_IntList,
        _aten.upsample_bilinear2d.default,
        _aten.upsample_bilinear2d_backward.default,
        _aten.upsample_nearest2d.default,
        _aten.upsample_nearest2d_backward.default,
    }
)
"""Operators whose results have the layout of their images. Operators that torch tags as element-wise do the same."""
_FUNCTIONS = (torch.conv2d, _aten.conv2d.default, _aten.convolution.default)
_FEWEST_PIXELS = 8
"""A convolution computes at least this many pixels of a batch for each channel. Otherwise it is slower with
channels-last images, because oneDNN spends most of its time on filters and their gradients. From measurements with one
thread on a processor with AVX-512, in float32: filters of 3x3, 16 to 512 channels, images of 4x4 to 56x56 pixels,
batches of 4 to 128."""


def may_gain(gm: fx.GraphModule) -> bool:
    """Returns whether a captured graph, or a graph that it calls, has convolutions for which `arrange` may pay."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    calls = [node for graph in graphs for node in graph.nodes if node.target in _FUNCTIONS]
    sizes = [(_tensor(_filter_of(node, 1)), _tensor(node)) for node in calls]
    with without_guards(mode_of(result for _, result in sizes)):
        return any(_gains(weight, result) for weight, result in sizes)


def arrange(gm: fx.GraphModule) -> None:
    """Changes a functional ATen graph, as the module describes. Raises: UnsupportedError if nothing can be changed."""
    mode = fake_mode_of([node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")])
    with mode or contextlib.nullcontext(), torch.no_grad(), without_guards(mode):
        nodes = [node for group in _groups(gm.graph) if _pays(group) for node in group]
        if mode is None or not _Arranger(gm.graph, nodes).run():
            raise UnsupportedError("no convolution gets images in another layout")
    gm.graph.lint()
    gm.recompile()


def _groups(graph: fx.Graph) -> list[list[fx.Node]]:
    """Returns the nodes that keep layouts, in connected groups."""
    leader: dict[fx.Node, fx.Node] = {}

    def find(node: fx.Node) -> fx.Node:
        while leader[node] is not node:
            node = leader[node]
        return node

    for node in graph.nodes:
        if not _keeps_layout(node, leader):
            continue
        leader[node] = node
        for source in _images_of(node):
            if source in leader:
                leader[find(source)] = find(node)
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in leader:
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())


def _keeps_layout(node: fx.Node, others: dict[fx.Node, fx.Node]) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return node.args[0] in others
    if not isinstance(node.target, OpOverload):
        return False
    tags = node.target.tags
    is_pointwise = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    return node.target in _KEEPING or (is_pointwise and not schema_of(node.target).is_mutable)


def _pays(group: list[fx.Node]) -> bool:
    return any(_gains(*_sizes_of(node)) for node in group if node.target in _CONVOLUTIONS)


def _sizes_of(node: fx.Node) -> tuple[Any, Any]:
    """Returns the filter and the result of a convolution, or of the one whose backward this is, as fake tensors."""
    position = _CONVOLUTIONS[node.target]
    return _tensor(_filter_of(node, position)), _tensor(node if position == 1 else node.args[0])


def _filter_of(node: fx.Node, position: int) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get("weight")


def _tensor(node: Any) -> Any:
    return node.meta.get("val", node.meta.get("example_value")) if isinstance(node, fx.Node) else None


def _gains(weight: Any, result: Any) -> bool:
    """Returns whether a convolution may be faster with channels-last images. If filters have one channel, the
    convolution is depthwise, or its images have a single channel and so the same memory in both layouts."""
    if not _is_image(weight) or not _is_image(result):
        return False
    return bool(weight.shape[1] > 1 and weight.shape[2] * weight.shape[3] > 1 and not _loses(weight, result))


def _loses(weight: Any, result: Any) -> bool:
    """Returns whether a convolution is slower with channels-last images."""
    if not _is_image(weight) or not _is_image(result):
        return False
    pixels = result.shape[0] * result.shape[2] * result.shape[3]
    channels = math.sqrt(int(weight.shape[0]) * int(weight.shape[1]))
    return bool(weight.shape[1] > 1 and pixels < _FEWEST_PIXELS * channels)


def _images_of(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the inputs whose layout matters: images, and operators with several results."""
    position = _CONVOLUTIONS.get(node.target)
    weight = _filter_of(node, position) if position is not None else None
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if source is not weight and (isinstance(value, (tuple, list)) or _is_image(value)):
            yield source


def _is_image(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 4


def _is_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def _has_layout(value: Any) -> bool:
    """Returns whether contiguous and channels-last images of these sizes differ in memory."""
    return _is_image(value) and not (value.is_contiguous() and _is_last(value))


def _pairs(mine: Any, other: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the tensors among the results of an operator, each with the one of another call of it."""
    are_several = isinstance(mine, (tuple, list))
    for pair in zip(mine, other, strict=True) if are_several else [(mine, other)]:
        if isinstance(pair[0], torch.Tensor):
            yield pair


def _are_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors of one shape have the same places in memory."""
    steps = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(size == 1 or mine == other for size, mine, other in steps)


class _Arranger:
    """Changes the given nodes of one graph. Runs inside the graph's fake mode."""

    def __init__(self, graph: fx.Graph, nodes: list[fx.Node]) -> None:
        self._graph, self._members = graph, set(nodes)
        self._before: dict[fx.Node, Any] = {}
        """{changed node: its value in the original layout}."""
        self._last: dict[fx.Node, fx.Node] = {}
        self._back: dict[fx.Node, fx.Node] = {}

    def run(self) -> bool:
        """Returns whether any node has another layout now."""
        for node in list(self._graph.nodes):
            if node in self._members and self._change(node):
                continue
            with self._graph.inserting_before(node):
                node.args = fx.map_arg(node.args, self._original)
                node.kwargs = fx.map_arg(node.kwargs, self._original)
        return bool(self._before)

    def _change(self, node: fx.Node) -> bool:
        """Lets a node compute with channels-last images. Returns False, and changes nothing, if it cannot."""
        sources = set(_images_of(node))
        begins = node.target in _CONVOLUTIONS and _gains(*_sizes_of(node))
        if not begins and not any(source in self._before for source in sources):
            return False
        if node.target in _CONVOLUTIONS and _loses(*_sizes_of(node)):
            return False
        if node.target is operator.getitem:
            source: Any = node.args[0]
            self._set(node, source.meta["val"][node.args[1]])
            return True

        def value(source: fx.Node) -> Any:
            found = source.meta["val"]
            turns = source in sources and self._turns(source)
            return found.clone(memory_format=torch.channels_last) if turns else found

        target: Any = node.target
        result = target(*fx.map_arg(node.args, value), **fx.map_arg(node.kwargs, value))
        if not self._fits(result, node.meta["val"]):
            return False

        def turned(source: fx.Node) -> fx.Node:
            return self._turned(source) if source in sources and self._turns(source) else source

        with self._graph.inserting_before(node):
            node.args, node.kwargs = fx.map_arg(node.args, turned), fx.map_arg(node.kwargs, turned)
        self._set(node, result)
        return True

    def _set(self, node: fx.Node, value: Any) -> None:
        before, node.meta["val"] = node.meta.get("val"), value
        if not all(_are_alike(mine, other) for mine, other in _pairs(value, before)):
            self._before[node] = before

    @staticmethod
    def _turns(source: fx.Node) -> bool:
        value = source.meta["val"]
        return _has_layout(value) and not _is_last(value)

    @staticmethod
    def _fits(result: Any, before: Any) -> bool:
        """Returns whether each result is channels-last or has the layout that it had before."""
        return all(
            _are_alike(mine, other) or (_is_image(mine) and _is_last(mine) and other.is_contiguous())
            for mine, other in _pairs(result, before)
        )

    def _turned(self, source: fx.Node) -> fx.Node:
        if source not in self._last:
            self._last[source] = self._clone(source, torch.channels_last)
        return self._last[source]

    def _original(self, source: fx.Node) -> fx.Node:
        if source not in self._before or not isinstance(source.meta["val"], torch.Tensor):
            return source
        if source not in self._back:
            self._back[source] = self._clone(source, torch.contiguous_format)
        return self._back[source]

    def _clone(self, source: fx.Node, layout: torch.memory_format) -> fx.Node:
        clone = self._graph.call_function(_aten.clone.default, (source,), {"memory_format": layout})
        clone.meta = {**source.meta, "val": source.meta["val"].clone(memory_format=layout)}
        return clone
