# SPDX-License-Identifier: Apache-2.0
"""The names of element types, callables and Dynamo sources in a GraphSpec, and functions that find the named object.

Names come from a closed set. A name stands for an operator of ``torch.ops``, a function of torch, operator, math or
NumPy (torch's implementation), or one of a few builtins. It never stands for a function that loads, stores or runs
code. Stateless; any thread.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import importlib
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from agspeed.graph_spec.numpy_names import numpy_function, numpy_name
from agspeed.torch_compat import dynamo, operators
from agspeed.torch_compat.checkpoint import run_part
from agspeed.torch_compat.operators import HigherOrderOperator, OpOverload, OpOverloadPacket

DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

_BUILTINS = frozenset(
    ("abs", "bool", "divmod", "float", "getattr", "hasattr", "int", "len", "max", "min", "pow", "round", "sum")
)
_FORBIDDEN = frozenset(
    ("classes", "compile", "export", "hub", "jit", "load", "load_library", "package", "save", "serialization", "utils")
)
_BODY_OPERATORS = frozenset(
    (
        # keep-sorted
        "associative_scan",
        "autograd_function_apply",
        "cond",
        "flex_attention",
        "invoke_subgraph",
        "map_impl",
        "register_hook",
        "scan",
        "strict_mode",
        "while_loop",
        "wrap",
        "wrap_activation_checkpoint",
        "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    )
)
"""Higher-order operators whose arguments say everything. Others (Triton kernels) refer to tables of their process."""
_CHECKPOINT = "higher_order.tag_activation_checkpoint"
"""The name of `run_part`: the name of torch's operator that it replaces."""
_SEARCH = (
    (operator, "operator"),
    (math, "math"),
    (torch, "torch"),
    (torch.nn.functional, "torch.nn.functional"),
)


def callable_name(target: Callable[..., Any]) -> str | None:
    """The GraphSpec name of a call target, or None if no name stands for the same object or an equal one."""
    if target is run_part:
        return _CHECKPOINT
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target}" if str(target) in _BODY_OPERATORS else None
    if (name := numpy_name(target)) is not None:
        return name
    leaf = getattr(target, "__name__", None)
    if not isinstance(leaf, str):
        return None
    if leaf in _BUILTINS and getattr(builtins, leaf, None) is target:
        return f"builtins.{leaf}"
    for module, prefix in (*_SEARCH, *operators.homes()):
        if getattr(module, leaf, None) is target:
            return f"{prefix}.{leaf}"
    name = f"{getattr(target, '__module__', None)}.{getattr(target, '__qualname__', leaf)}"
    try:
        return name if resolve_callable(name) is target else None
    except ValueError:
        return None


def resolve_callable(name: str) -> Callable[..., Any]:
    """Inverse of `callable_name`. Raises ValueError for a name outside the closed set."""
    root, *path = name.split(".")
    if name == _CHECKPOINT:
        return run_part
    if root == "builtins" and len(path) == 1 and path[0] in _BUILTINS:
        return _function(builtins, path[0])
    if root in ("operator", "math") and len(path) == 1 and hasattr(importlib.import_module(root), path[0]):
        return _function(importlib.import_module(root), path[0])
    if root == "torch":
        return _resolve_torch(name, path)
    if root == "numpy":
        return numpy_function(name)
    if root == "higher_order" and len(path) == 1 and path[0] in _BODY_OPERATORS:
        operators.load_higher_order()
        return _function(torch.ops.higher_order, path[0])
    return _resolve_operator(name, [root, *path])


def _function(owner: object, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(owner, name)
    return function


def _resolve_torch(name: str, path: list[str]) -> Callable[..., Any]:
    found: Any = torch
    for part in path:
        if part in _FORBIDDEN or not hasattr(found, part):
            raise ValueError(f"'{name}' is not a function a graph may call")
        found = getattr(found, part)
        if isinstance(found, types.ModuleType) and not found.__name__.startswith("torch"):
            raise ValueError(f"'{name}' is not a function a graph may call")
    if not callable(found) or isinstance(found, types.ModuleType | type):
        raise ValueError(f"'{name}' does not name a function")
    home = getattr(found, "__module__", None)
    if home is not None and home.split(".")[0] not in ("torch", "_operator", "builtins", "math"):
        raise ValueError(f"'{name}' is defined in '{home}', outside torch")
    function: Callable[..., Any] = found
    return function


def _resolve_operator(name: str, path: list[str]) -> Callable[..., Any]:
    found: Any = torch.ops
    try:
        for part in path:
            found = getattr(found, part)
    except AttributeError:
        raise ValueError(f"operator '{name}' is not registered in this process") from None
    if not isinstance(found, OpOverload | OpOverloadPacket):
        raise ValueError(f"'{name}' does not name an operator")
    return found


def source_to_json(source: Any) -> Any:
    """Encodes a Dynamo source (where a graph's input comes from). Raises ValueError if a field has no JSON form."""
    if source is None or isinstance(source, str | int | bool):
        return source
    if isinstance(source, enum.Enum):
        return {"enum": [type(source).__name__, source.name]}
    if dynamo.is_source(source):
        values = [source_to_json(getattr(source, f.name)) for f in dataclasses.fields(source) if f.init]
        return {"source": type(source).__name__, "fields": values}
    raise ValueError(f"a Dynamo source holds a {type(source).__name__}")


def source_from_json(value: Any) -> Any:
    """Inverse of `source_to_json`."""
    if not isinstance(value, dict):
        return value
    kind, fields = (value["source"], value["fields"]) if "source" in value else value["enum"]
    cls: Any = dynamo.source_class(kind)
    if cls is None:
        raise ValueError(f"'{kind}' is not a Dynamo source")
    if "enum" in value:
        return cls[fields]
    return cls(*(source_from_json(field) for field in fields))
