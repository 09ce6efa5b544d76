# SPDX-License-Identifier: Apache-2.0
"""JSON forms of the values in a graph: arguments, tensor types and symbolic integers (the writing half).

`ValueWriter` lives for one export and collects the graph's symbols. It writes sizes as SymExpr text over s0, s1, ...,
which are numbered in the order of their first use. Stateless otherwise; one thread.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx

from agspeed.graph_spec.names import DTYPE_NAMES, source_to_json
from agspeed.torch_compat.modes import is_traceable_wrapper_subclass
from agspeed.torch_compat.shapes import (
    CeilDiv,
    FloorDiv,
    Identity,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PythonMod,
    unspecialized,
)

Json = Any


class NotRepresentableError(Exception):
    """A value has no GraphSpec form. The message completes the sentence "<node> has ..."."""


class ValueWriter:
    """Encodes values. ``symbols`` is the GraphSpec's table of all symbols so far."""

    def __init__(self) -> None:
        self.symbols: list[dict[str, Json]] = []
        self._names: dict[sympy.Symbol, str] = {}

    def argument(self, value: Any) -> Json:
        """Encodes one argument of a call, including nested containers."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, fx.Node):
            return {"ref": value.name}
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, complex):
            return {"complex": [self.argument(value.real), self.argument(value.imag)]}
        if isinstance(value, tuple):
            return {"tuple": [self.argument(item) for item in value]}
        if isinstance(value, list):
            return [self.argument(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[self.argument(k), self.argument(v)] for k, v in value.items()]}
        return self._special(value)

    def _special(self, value: Any) -> Json:
        if isinstance(value, slice):
            return {"slice": [self.argument(v) for v in (value.start, value.stop, value.step)]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, torch.dtype):
            return {"dtype": _dtype_name(value)}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, torch.layout):
            return {"layout": str(value).removeprefix("torch.")}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value).removeprefix("torch.")}
        if isinstance(value, torch.SymInt):
            return {"sym": self.size(value)}
        raise NotRepresentableError(f"an argument of type {type(value).__name__}, which a graph file cannot hold")

    def size(self, value: int | torch.SymInt) -> int | str:
        """Encodes a size or a stride as an int or as SymExpr text."""
        if not isinstance(value, torch.SymInt):
            return int(value)
        node = value.node
        expr = node.shape_env.simplify(node.expr) if node.shape_env is not None else node.expr
        if expr.is_Integer:
            return int(expr)
        self._register(expr, node.shape_env)
        return self._text(expr)

    def _register(self, expr: sympy.Expr, shape_env: Any) -> None:
        values = shape_env.backed_var_to_val
        for symbol in sorted(expr.free_symbols, key=str):
            if symbol in self._names:
                continue
            if symbol not in values:
                raise NotRepresentableError(f"a size that depends on data ({symbol})")
            name = f"s{len(self._names)}"
            self._names[symbol] = name
            self.symbols.append({"name": name, "hint": int(values[symbol]), **_symbol_origin(symbol, shape_env)})

    def float_symbol(self, value: Any) -> dict[str, Json]:
        """The symbol of a Python float that Dynamo passes as a float64 scalar tensor; "fixed" once specialised."""
        symbol = unspecialized(value)
        if not symbol.is_Symbol or value.node.hint is None:
            raise NotRepresentableError(f"the symbolic float '{symbol}' as its value")
        fixed = bool(value.node.expr.is_number)
        return {"hint": float(value.node.hint), "fixed": fixed, **_symbol_origin(symbol, value.node.shape_env)}

    def _text(self, expr: sympy.Expr) -> str:
        if expr.is_Symbol:
            return self._names[expr]
        if expr.is_Integer:
            return str(int(expr))
        parts = [self._text(arg) for arg in expr.args] if not expr.is_Rational else []
        if isinstance(expr, sympy.Add):
            return f"({' + '.join(parts)})"
        if isinstance(expr, sympy.Mul):
            return f"({'*'.join(parts)})"
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
            return f"({'*'.join([parts[0]] * int(expr.exp))})"
        if isinstance(expr, FloorDiv):
            return f"({parts[0]} // {parts[1]})"
        if isinstance(expr, CeilDiv):
            return f"(({parts[0]} + {parts[1]} - 1) // {parts[1]})"
        if isinstance(expr, Mod | PythonMod):
            return f"({parts[0]} % {parts[1]})"
        if isinstance(expr, ModularIndexing):
            return f"(({parts[0]} // {parts[1]}) % {parts[2]})"
        if isinstance(expr, Identity):
            return parts[0]
        if isinstance(expr, Max | Min | sympy.Max | sympy.Min):
            return _fold("max" if isinstance(expr, Max | sympy.Max) else "min", parts)
        raise NotRepresentableError(f"the size '{expr}', which has no text form")

    def result_type(self, value: Any) -> Json:
        """The type of a node's result; null if the result is neither a tensor nor a symbolic integer."""
        if isinstance(value, torch.Tensor):
            return self.tensor_type(value)
        if isinstance(value, torch.SymInt):
            return {"sym": self.size(value)}
        if isinstance(value, list | tuple):
            return {"tuple": [self.result_type(item) for item in value]}
        return None

    def tensor_type(self, value: torch.Tensor) -> dict[str, Json]:
        dense = value.layout is torch.strided and not value.is_quantized
        wrapper: bool = is_traceable_wrapper_subclass(value)
        if wrapper or not dense:
            kind = type(value).__name__ if dense else str(value.layout)
            raise NotRepresentableError(f"a tensor of kind {kind}; only dense tensors have a type here")
        if value.is_conj() or value.is_neg():
            raise NotRepresentableError("a lazily conjugated or negated tensor")
        return {
            "dtype": _dtype_name(value.dtype),
            "shape": [self.size(n) for n in value.shape],
            "stride": [self.size(n) for n in value.stride()],
            "device": str(value.device),
            "requires_grad": bool(value.requires_grad),
        }

    def storage(self, value: torch.Tensor) -> dict[str, Json]:
        """The place of a tensor in its storage; empty if the tensor fills its storage exactly."""
        offset = self.size(value.storage_offset())
        layout: dict[str, Json] = {"storage_offset": offset} if offset != 0 else {}
        total = value.untyped_storage().nbytes()
        static = not any(isinstance(n, torch.SymInt) for n in (total, *value.shape, *value.stride()))
        if static and total != _extent(value.shape, value.stride()) * value.dtype.itemsize:
            layout["storage_bytes"] = total
        return layout


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _fold(name: str, parts: list[str]) -> str:
    text = parts[-1]
    for part in reversed(parts[:-1]):
        text = f"{name}({part}, {text})"
    return text


def _dtype_name(dtype: torch.dtype) -> str:
    if dtype not in DTYPE_NAMES:
        raise NotRepresentableError(f"element type {str(dtype).removeprefix('torch.')}, which is not supported")
    return DTYPE_NAMES[dtype]


def _symbol_origin(symbol: sympy.Symbol, shape_env: Any) -> dict[str, Json]:
    """The name, range and source of a symbol in torch, from which a rebuilt graph creates the same symbol again."""
    origin: dict[str, Json] = {"torch": str(symbol), "positive": bool(symbol.is_positive)}
    span = shape_env.var_to_range.get(symbol)
    if span is not None and symbol.is_integer:
        origin["range"] = [_bound(span.lower), _bound(span.upper)]
    sources = shape_env.var_to_sources.get(symbol, [])
    if sources:
        with contextlib.suppress(ValueError):
            origin["source"] = source_to_json(sources[0])
    return origin


def _bound(value: Any) -> int | None:
    return int(value) if value.is_Integer and abs(int(value)) < 2**62 else None
