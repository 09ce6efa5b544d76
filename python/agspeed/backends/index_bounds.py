# SPDX-License-Identifier: Apache-2.0
"""Detects negative indices that eager refuses and Inductor's code accepts.

``x[-1]`` is the last row. But `embedding`, `gather`, `scatter_add`, `cross_entropy` and others raise for such an index
in eager, because it is a mistake in the data. Inductor's code reads from the end instead. `bounds_of` finds the inputs
of a graph from which these operators take indices, and `is_within` checks their values at each call. Computed indices
are followed through operators that keep values or cannot make them negative. `bounds_of` raises `UnsupportedError` for
a graph whose indices cannot be followed. Inductor's code itself checks for indices that are too large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from agspeed.errors import UnsupportedError


@dataclass(frozen=True)
class Bound:
    """The rule that no element of a graph's input may be negative, except `ignored`."""

    input: int
    ignored: int | None = None


def bounds_of(gm: fx.GraphModule) -> list[Bound]:
    """Returns the bounds that the operators of a torch-level graph set. Raises: UnsupportedError."""
    found = set(_Graph(gm, None, ()).bounds())
    strict = {bound.input for bound in found if bound.ignored is None}
    return sorted(
        (bound for bound in found if bound.ignored is None or bound.input not in strict),
        key=lambda bound: (bound.input, bound.ignored or 0),
    )


def is_within(bounds: Sequence[Bound], args: Sequence[Any]) -> bool:
    """Returns whether a call's arguments satisfy all bounds. Waits for the GPU if the arguments are on one."""
    for bound in bounds:
        value = args[bound.input]
        if not isinstance(value, torch.Tensor):
            if value < 0 and value != bound.ignored:
                return False
        elif value.numel() and int(value.min()) < 0:
            is_ignored = bound.ignored is not None and bool(((value >= 0) | (value == bound.ignored)).all())
            if not is_ignored:
                return False
    return True


_FUNCTIONS: dict[Any, tuple[int, str]] = {
    functional.embedding: (0, "input"),
    functional.embedding_bag: (0, "input"),
    functional.one_hot: (0, "tensor"),
    functional.cross_entropy: (1, "target"),
    functional.nll_loss: (1, "target"),
    torch.embedding: (1, "indices"),
    torch.take_along_dim: (1, "indices"),
}
"""{operator: position and keyword of its indices}."""
_IGNORING: tuple[Any, ...] = (functional.cross_entropy, functional.nll_loss)
"""Operators with an ``ignore_index``, their fifth argument, -100 by default."""
# fmt: off
_BY_DIM = frozenset([
    "gather", "index_add", "index_copy", "index_fill", "index_reduce", "index_select", "scatter", "scatter_add",
    "scatter_reduce"
])
# fmt: on
"""Operators called as ``(input, dim, index, ...)``: functions and methods, in place or not."""

# fmt: off
_KEEPING = frozenset([
    "argwhere", "broadcast_to", "clone", "chunk", "concat", "concatenate", "contiguous", "cpu", "cat", "detach",
    "expand", "expand_as", "flatten", "flip", "getitem", "int", "long", "movedim", "narrow", "permute", "pin_memory",
    "ravel", "repeat", "repeat_interleave", "reshape", "roll", "select", "split", "squeeze", "stack", "swapaxes", "t",
    "tile", "to", "transpose", "tril", "triu", "type", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as",
    "amax", "amin", "checkpoint_name", "clamp_max", "clamp_max_", "index_select", "gather"
])
# fmt: on
"""Names of functions and methods whose results consist of elements of the first argument."""
# fmt: off
_SUMMING = frozenset([
    "add", "add_", "cumsum", "cumprod", "floordiv", "floor_divide", "iadd", "imul", "max", "maximum", "min", "minimum",
    "mul", "mul_", "multiply", "prod", "sum"
])
# fmt: on
"""Names of functions and methods whose results are not negative if no argument is negative."""
# fmt: off
_NOT_NEGATIVE = frozenset([
    "abs", "all", "any", "arange", "argmax", "argmin", "argsort", "bincount", "bool", "bucketize", "count_nonzero",
    "eq", "ge", "gt", "isfinite", "isin", "isinf", "isnan", "le", "logical_and", "logical_not", "logical_or", "lt",
    "multinomial", "ne", "new_ones", "new_zeros", "nonzero", "numel", "ones", "ones_like", "randint", "randperm",
    "relu", "searchsorted", "sigmoid", "size", "softmax", "square", "tril_indices", "triu_indices", "zeros",
    "zeros_like", "zero_"
])
# fmt: on
_ALONG = frozenset(["cumsum", "cumprod", "max", "min", "prod", "sum"])
"""Names for which a number among the arguments is a dimension, which may be negative."""
_WITH_INDICES = frozenset(["kthvalue", "max", "median", "min", "mode", "sort", "topk"])
"""Names whose second result is an index."""
_REMAINDERS = frozenset(["mod", "remainder", "remainder_"])
# fmt: off
_OF_SIZES = frozenset([
    "dim", "empty_like", "full_like", "getattr", "new_full", "numel", "ones_like", "size", "stride", "zeros_like"
])
# fmt: on
"""Names whose results do not depend on the elements of the arguments."""
_CALLING = frozenset(["checkpoint", "invoke_subgraph", "tag_activation_checkpoint", "wrap"])
"""Operators that call a graph with the arguments that follow it."""


class _UnknownError(Exception):
    """The source of an index cannot be followed; the message names it."""


class _Graph:
    """A graph. outer: the graph that calls it with `operands`, or None."""

    def __init__(self, gm: fx.GraphModule, outer: _Graph | None, operands: Sequence[Any]) -> None:
        self._gm, self._outer, self._operands = gm, outer, operands
        self._placeholders = list(gm.graph.find_nodes(op="placeholder"))

    def bounds(self) -> Iterable[Bound]:
        for node in self._gm.graph.nodes:
            if node.op not in ("call_function", "call_method"):
                continue
            for at, argument in enumerate(node.args):
                inner = self._called(argument)
                if inner is not None:
                    is_plain = _name(node) in _CALLING
                    operands = [arg for arg in node.args[at + 1 :] if not isinstance(arg, str)] if is_plain else ()
                    yield from _Graph(inner, self, operands).bounds()
            index, ignored = _index_of(node)
            if index is None or (isinstance(index, fx.Node) and not _is_integer(index)):
                continue
            try:
                yield from {Bound(place, ignored) for place in self._sources(index, ignored)}
            except _UnknownError as unknown:
                name = _name(node)
                reason = f"eager refuses negative indices in {name}, Inductor does not, and they come from {unknown}"
                raise UnsupportedError(reason) from None

    def _called(self, argument: Any) -> fx.GraphModule | None:
        if not isinstance(argument, fx.Node) or argument.op != "get_attr":
            return None
        found = _attribute(self._gm, str(argument.target))
        return found if isinstance(found, fx.GraphModule) else None

    def _sources(self, value: Any, ignored: int | None) -> set[int]:
        """Returns the inputs of the outermost graph that must not be negative, so that `value` is not negative. Raises:
        _UnknownError."""
        if isinstance(value, fx.Node):
            ignored = ignored if ignored is not None else _replaced_in(value)
            stored = (self._sources(other, ignored) for other in _stored_in(value))
            return self._sources_of_node(value, ignored).union(*stored)
        if isinstance(value, list | tuple):
            return set().union(*(self._sources(each, ignored) for each in value))
        if isinstance(value, bool) or not isinstance(value, int | float) or value >= 0 or value == ignored:
            return set()
        raise _UnknownError(f"the number {value}")

    def _sources_of_node(self, node: fx.Node, ignored: int | None) -> set[int]:
        if node.op == "placeholder":
            at = self._placeholders.index(node)
            if self._outer is None:
                return {at}
            if at >= len(self._operands):
                raise _UnknownError(f"an input of an inner graph, {node.name}")
            return self._outer._sources(self._operands[at], ignored)
        if node.op == "get_attr":
            value = _attribute(self._gm, str(node.target))
            if isinstance(value, torch.Tensor) and (value.numel() == 0 or int(value.min()) >= 0):
                return set()
            raise _UnknownError(f"a constant, {node.target}")
        return self._sources_of_call(node, ignored)

    def _sources_of_call(self, node: fx.Node, ignored: int | None) -> set[int]:
        name = _name(node)
        first = node.args[0] if node.args else None
        if name in _NOT_NEGATIVE or (name == "where" and len(node.args) == 1):
            return set()
        if name == "full" or name in ("full_like", "new_full"):
            return self._sources(node.args[1:2], ignored)
        if name == "getattr":  # the shape of a tensor
            return set()
        if name == "getitem" and isinstance(first, fx.Node):
            if _name(first) in _WITH_INDICES and node.args[1] == 1:
                return set()
            return self._sources(first, ignored)
        if name in ("clamp", "clamp_", "clamp_min", "clip"):
            low = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
            return set() if isinstance(low, int | float) and low >= 0 else self._sources(first, ignored)
        if name in _REMAINDERS and isinstance(node.args[1], int) and node.args[1] > 0:
            return set()
        if name == "where":
            return self._sources(node.args[1:3], ignored)
        if name in ("masked_fill", "masked_fill_"):
            replaced = ignored if ignored is not None else _compared_with(node.args[1], first)
            return self._sources(first, replaced) | self._sources(node.args[2], ignored)
        if name == "pad":
            value = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
            return self._sources(first, ignored) | self._sources(value, ignored)
        if name == "copy_":
            return self._sources(node.args[1], ignored)
        if name in _KEEPING:
            return self._sources(first, ignored)
        if name in _SUMMING:
            factors = node.args if name not in _ALONG else [arg for arg in node.args if isinstance(arg, fx.Node)]
            return self._sources(list(factors), None)
        if not self._has_data(node):
            return set()
        raise _UnknownError(f"{name}, {node.name}")

    def _has_data(self, value: Any) -> bool:
        """Returns whether a value depends on elements of the graph's inputs and not only on their sizes."""
        if isinstance(value, list | tuple):
            return any(map(self._has_data, value))
        if not isinstance(value, fx.Node) or (value.op != "placeholder" and _name(value) in _OF_SIZES):
            return False
        if value.op in ("placeholder", "get_attr"):
            return isinstance(value.meta.get("example_value"), torch.Tensor)
        return any(map(self._has_data, value.all_input_nodes))


def _index_of(node: fx.Node) -> tuple[Any, int | None]:
    """Returns an operator's indices and the index that it ignores; (None, None) for operators without indices."""
    if node.op == "call_function" and node.target in _FUNCTIONS:
        position, keyword = _FUNCTIONS[node.target]
        ignored: Any = None
        if node.target in _IGNORING:
            ignored = node.args[4] if len(node.args) > 4 else node.kwargs.get("ignore_index", -100)
    elif _name(node).removesuffix("_") in _BY_DIM:
        position, keyword, ignored = 2, "index", None
    else:
        return None, None
    index = node.args[position] if len(node.args) > position else node.kwargs.get(keyword)
    return index, ignored if isinstance(ignored, int) else None


def _stored_in(node: fx.Node) -> list[Any]:
    """Returns the values that the graph writes into a tensor or into a view of it."""
    stored: list[Any] = []
    for user in node.users:
        if not user.args or user.args[0] is not node:
            continue
        name = _name(user)
        if name == "setitem":
            stored.append(user.args[2])
        elif name in _STORING:
            stored.append(user.args[_STORING[name]])
        elif name.endswith("_") and not name.endswith("__") and name not in _SAFE_IN_PLACE:
            raise _UnknownError(f"{name}, {user.name}")
        elif name in _VIEWS:
            stored += _stored_in(user)
    return stored


def _replaced_in(node: fx.Node) -> int | None:
    """Returns the number c of ``node.masked_fill_(node == c, ...)``, which replaces elements equal to c; or None."""
    fills = [user for user in node.users if _name(user) == "masked_fill_" and user.args[0] is node]
    return next((found for fill in fills if (found := _compared_with(fill.args[1], node)) is not None), None)


def _compared_with(mask: Any, tensor: Any) -> int | None:
    """Returns the number c if a mask is ``tensor == c``, else None."""
    is_equality = isinstance(mask, fx.Node) and _name(mask) == "eq" and mask.args[0] is tensor
    return mask.args[1] if is_equality and isinstance(mask.args[1], int) else None


_STORING = {"copy_": 1, "fill_": 1, "add_": 1, "mul_": 1, "masked_fill_": 2, "masked_scatter_": 2}
_STORING |= {"index_copy_": 3, "index_fill_": 3, "scatter_": 3}
"""{operator that writes into its first argument: position of the argument that may make an element negative}."""
# fmt: off
_SAFE_IN_PLACE = frozenset([
    "clamp_", "clamp_min_", "detach_", "remainder_", "requires_grad_", "squeeze_", "unsqueeze_", "zero_"
])
# fmt: on
# fmt: off
_VIEWS = frozenset([
    "detach", "expand", "flatten", "getitem", "narrow", "permute", "reshape", "select", "squeeze", "t", "transpose",
    "unsqueeze", "view", "view_as"
])
# fmt: on


def _is_integer(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return not isinstance(value, torch.Tensor) or not (value.dtype.is_floating_point or value.dtype == torch.bool)


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value
