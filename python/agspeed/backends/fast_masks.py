# SPDX-License-Identifier: Apache-2.0
"""Lets compiled code draw the masks of dropout faster than torch does, with the same numbers.

For Inductor and for graphs that ATen runs, torch's dropout is one opaque call. `draw_fast` replaces it:

    y, mask = native_dropout(x, p, True)      mask = agspeed.bernoulli_mask(x.shape, 1 - p)
                                              y = x * mask * (1 / (1 - p))

The operator belongs to the native extension (`runtime/aten/random_draws.h`). Inductor fuses the products with other
operators.
Numbers go to elements by index, whatever layout the compiler chooses for `x`.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import fx

from agspeed import native
from agspeed.torch_compat.shapes import fake_mode_of, unset_fake_temporarily

_aten = torch.ops.aten


def draw_fast(graph: fx.GraphModule) -> None:
    """Replaces the dropouts of a functional ATen graph on the CPU, if the extension is loaded.

    A dropout stays as it is if its sizes are symbolic, or its elements in memory do not have the order of its indices.
    """
    mask = mask_operator()
    mode = fake_mode_of([node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")])
    if mask is None or mode is None:
        return
    for node in graph.graph.find_nodes(op="call_function", target=_aten.native_dropout.default):
        if _can_be_replaced(node):
            with mode, graph.graph.inserting_before(node):
                _replace(node, mask)
    graph.recompile()


@functools.cache
def mask_operator() -> Any:
    """Returns `agspeed::bernoulli_mask`, or None without the extension."""
    if native.load() is None:
        return None
    torch.library.register_fake("agspeed::bernoulli_mask", _like_mask)
    return torch.ops.agspeed.bernoulli_mask.default


def _like_mask(sizes: Any, probability: float) -> torch.Tensor:
    return torch.empty(sizes, dtype=torch.bool, device="cpu")


def _can_be_replaced(node: fx.Node) -> bool:
    source, probability, is_training = node.args
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    return (
        isinstance(value, torch.Tensor)
        and is_training is not False
        and isinstance(probability, (int, float))
        and 0 < probability <= 1
        and value.device.type == "cpu"
        and all(isinstance(size, int) for size in value.shape)
        and value.is_contiguous()
        and all(user.target is operator.getitem for user in node.users)
    )


def _scale(node: fx.Node, probability: float) -> float:
    """Returns the factor of kept elements. Eager rounds it to the elements' type."""
    with unset_fake_temporarily():
        return float(torch.ones((), dtype=node.meta["val"][0].dtype).div_(1 - probability))


def _replace(node: fx.Node, mask: Any) -> None:
    source, probability = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(probability, (int, float))

    def call(target: Any, *args: Any, **options: Any) -> fx.Node:
        made = node.graph.call_function(target, args, options)
        made.meta = {**node.meta, "val": target(*fx.map_arg(args, lambda arg: arg.meta["val"]), **options)}
        made.meta.pop("tensor_meta", None)  # of dropout's two results
        return made

    sizes = list(source.meta["val"].shape)
    if probability == 1:  # torch.nn.functional.dropout draws nothing, and multiplies by zero
        drawn = call(_aten.full.default, sizes, False, dtype=torch.bool, device=source.meta["val"].device)
        scaled = call(_aten.mul.Tensor, source, 0)
    else:
        drawn = call(mask, sizes, 1 - probability)
        scaled = call(_aten.mul.Tensor, call(_aten.mul.Tensor, source, drawn), _scale(node, probability))
    for part in list(node.users):
        results: Any = (scaled, drawn)
        part.replace_all_uses_with(results[part.args[1]])
        node.graph.erase_node(part)
    node.graph.erase_node(node)
