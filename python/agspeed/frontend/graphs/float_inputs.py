# SPDX-License-Identifier: Apache-2.0
"""Python floats that a captured graph takes as inputs, say the result of an ``.item()`` before it.

Dynamo passes such a float as a tensor of one float64 and reads it back inside the graph, which only Dynamo itself could
trace. Arithmetic gives the same bits with that tensor as with the float, for which the reading back is left out. A
graph that does anything else with the float is captured again with the float as a constant, guarded by its value.
What the code between graphs asks about the float is Dynamo's to guard, and no compiler's business.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from agspeed.torch_compat.dynamo import TensorifyScalarRestartAnalysis, specialize_float
from agspeed.torch_compat.shapes import FakeTensor, ShapeEnv, SymT, TracingContext, symbol_is_type, unspecialized

_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv}
_EXACT = (torch.float32, torch.float64)


def pass_floats_as_tensors(gm: fx.GraphModule) -> None:
    """See the module's text; changes `gm`.

    Raises: TensorifyScalarRestartAnalysis where Dynamo has to capture the graph again.
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


def forget_floats(shapes: ShapeEnv) -> None:
    """To be called when a frame's guards are made: no graph has symbols for floats, and AOTAutograd refuses one that it
    finds in the shapes of a graph."""
    values = shapes.backed_var_to_val
    for symbol in [symbol for symbol in values if symbol_is_type(symbol, SymT.FLOAT)]:
        del values[symbol]


def shapes_being_traced() -> ShapeEnv | None:
    """Those of the graph that Dynamo is capturing."""
    context = TracingContext.try_get()
    return context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None


def _readings(node: fx.Node) -> list[fx.Node]:
    """Where the graph reads a Python float from the input `node`; [] where it is an ordinary input."""
    example = node.meta.get("example_value")
    is_float = isinstance(example, FakeTensor) and isinstance(example.item_memo, torch.SymFloat)
    return [user for user in node.users if is_float and user.target == "item"]


def _is_arithmetic(value: fx.Node) -> bool:
    """Whether a node with a float as its value is used for nothing but arithmetic that is the same with a tensor."""
    return all(user.target in _ARITHMETIC and _is_same(user) for user in value.users)


def _is_same(user: fx.Node) -> bool:
    """Arithmetic of floats alone, of which the same holds; or with tensors, where dtypes turn out the same."""
    if isinstance(user.meta.get("example_value"), torch.SymFloat):
        return _is_arithmetic(user)
    examples = [arg.meta.get("example_value") for arg in user.args if isinstance(arg, fx.Node)]
    tensors = [value for value in examples if isinstance(value, torch.Tensor)]
    return all(value.dtype in _EXACT and value.dim() > 0 for value in tensors)


def _replace(value: fx.Node, tensor: fx.Node) -> None:
    """`value`, a float, is replaced by `tensor`; what is computed from it alone is a tensor, too, from then on."""
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
