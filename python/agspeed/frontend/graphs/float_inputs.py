# SPDX-License-Identifier: Apache-2.0
"""Handles Python floats that a captured graph takes as inputs, for example the result of an earlier ``.item()``.

Dynamo passes such a float as a tensor of one float64, and the graph reads the float back with ``.item()``, which only
Dynamo itself can trace. Arithmetic with the tensor gives the same bits as with the float. So if the graph uses the
float only in arithmetic, the ``.item()`` is removed. Otherwise the graph is captured again with the float as a
constant, guarded by its value. Dynamo guards the float for the code between graphs; compilers need not.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from agspeed.torch_compat.dynamo import TensorifyScalarRestartAnalysis, specialize_float
from agspeed.torch_compat.shapes import FakeTensor, ShapeEnv, TracingContext, unspecialized

_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv}
_EXACT = (torch.float32, torch.float64)


def pass_floats_as_tensors(gm: fx.GraphModule) -> None:
    """Replaces floats by tensors in `gm`, in place.

    Raises: TensorifyScalarRestartAnalysis if Dynamo must capture the graph again.
    """
    floats = {node: found for node in gm.graph.find_nodes(op="placeholder") if (found := _readings(node))}
    unsuitable = [node for node, readings in floats.items() if not all(map(_is_arithmetic, readings))]
    for node in unsuitable:
        specialize_float(unspecialized(node.meta["example_value"].item_memo).name)
    if unsuitable:
        raise TensorifyScalarRestartAnalysis
    for node, readings in floats.items():
        for reading in readings:
            _replace(reading, node)
    if floats:
        gm.recompile()


def shapes_being_traced() -> ShapeEnv | None:
    """Returns the shape environment of the graph that Dynamo is capturing, or None."""
    context = TracingContext.try_get()
    return context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None


def _readings(node: fx.Node) -> list[fx.Node]:
    """Returns the nodes that read a Python float from the input `node`; [] for an ordinary input."""
    example = node.meta.get("example_value")
    is_float = isinstance(example, FakeTensor) and isinstance(example.item_memo, torch.SymFloat)
    return [user for user in node.users if is_float and user.target == "item"]


def _is_arithmetic(value: fx.Node) -> bool:
    """Returns whether a float node is used only in arithmetic that gives the same result with a tensor."""
    return all(user.target in _ARITHMETIC and _is_same(user) for user in value.users)


def _is_same(user: fx.Node) -> bool:
    """Returns whether arithmetic gives the same result with a tensor in place of the float. With floats alone, its
    result must be used likewise; with tensors, the result dtype must stay the same."""
    if isinstance(user.meta.get("example_value"), torch.SymFloat):
        return _is_arithmetic(user)
    examples = [arg.meta.get("example_value") for arg in user.args if isinstance(arg, fx.Node)]
    tensors = [value for value in examples if isinstance(value, torch.Tensor)]
    return all(value.dtype in _EXACT and value.dim() > 0 for value in tensors)


def _replace(value: fx.Node, tensor: fx.Node) -> None:
    """Replaces the float `value` by `tensor`. Nodes that are computed from floats alone become tensors too."""
    users = list(value.users)
    value.replace_all_uses_with(tensor)
    value.graph.erase_node(value)
    for user in users:
        _retype(user)


def _retype(node: fx.Node) -> None:
    if isinstance(node.meta.get("example_value"), torch.SymFloat):
        operands = [arg.meta["example_value"] if isinstance(arg, fx.Node) else arg for arg in node.args]
        node.meta["example_value"] = node.target(*operands)  # type: ignore[operator]
        for user in list(node.users):
            _retype(user)
