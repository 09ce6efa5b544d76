# SPDX-License-Identifier: Apache-2.0
"""GraphSpec: one flat, documented JSON export of an FX graph.

It has three uses. It is the native compiler's input (ATen level, as AOTAutograd produces it). It carries a captured
graph to a compiling child process (torch level, as Dynamo passes it to a backend), where `read.rebuild` rebuilds the
graph. And it is a reproducer. A spec is immutable and owns nothing but its constants; any thread may read it.

The format is version 1, or version 2 if there are bodies::

    {"version": 2,
     "symbols": [{"name": "s0", "hint": 8, "torch": "s77", "positive": true, "range": [2, null], "source": ...}],
     "nodes": [
      {"name": "x", "op": "input", "target": "L_x_", "type": T, "parameter": true, "static": "unguarded", ...},
      {"name": "c", "op": "attr", "target": "c", "type": T},
      {"name": "add", "op": "call", "target": "aten.add.Tensor", "args": [{"ref": "x"}, 2.0], "kwargs": {"alpha": 1},
       "type": T, "origin": "train.py:12"},
      {"name": "t", "op": "method", "target": "t", "args": [{"ref": "x"}], "kwargs": {}, "type": T},
      {"name": "body", "op": "graph", "target": "cond_true_0"},
      {"name": "output", "op": "output", "args": [[{"ref": "add"}, null]]}],
     "bodies": {"cond_true_0": [{"name": "y", "op": "input", "target": "y", "type": T}, ...,
                                {"name": "output", "op": "output", "args": [{"tuple": [{"ref": "y"}]}]}]}}

T is ``{"dtype", "shape", "stride", "device", "requires_grad"}``, ``{"sym": "s0"}``, ``{"tuple": [T, ...]}`` or null.
Sizes are integers or SymExpr text. Call targets are operators (``aten.add.Tensor``, ``higher_order.cond``) or functions
by dotted name (``operator.getitem``, ``torch.nn.functional.linear``). A graph that a higher-order operator calls is in
"bodies", under its dotted path. A body has its own names of nodes, and shares the symbols. Arguments are null,
booleans, integers, finite floats, strings, arrays for lists, and one-key objects: ref, tuple, dict, slice, ellipsis,
dtype, device, layout, memory_format, sym, float, complex. Only the rebuild uses keys of inputs beyond name, op and
type, and keys of symbols beyond name and hint.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from agspeed.errors import UnsupportedError
from agspeed.graph_spec.names import callable_name, source_to_json
from agspeed.graph_spec.values import Json, NotRepresentableError, ValueWriter
from agspeed.torch_compat import graphs
from agspeed.torch_compat.modules import storage_of
from agspeed.torch_compat.operators import HigherOrderOperator

VERSION = 1
VERSION_WITH_BODIES = 2
_TORCH_HOME = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class GraphSpec:
    """A graph as plain data.

    ``tensors`` holds the constants that "attr" nodes name. The name of a body's constant begins with the body's path.
    The constants are not part of the JSON.
    """

    symbols: list[dict[str, Json]]
    nodes: list[dict[str, Json]]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    bodies: dict[str, list[dict[str, Json]]] = field(default_factory=dict)

    def to_json(self) -> str:
        data: dict[str, Json] = {"version": VERSION, "symbols": self.symbols, "nodes": self.nodes}
        if self.bodies:
            data |= {"version": VERSION_WITH_BODIES, "bodies": self.bodies}
        return json.dumps(data, separators=(",", ":"))

    @staticmethod
    def from_json(text: str, tensors: dict[str, torch.Tensor] | None = None) -> GraphSpec:
        """Raises ValueError when the text is not a GraphSpec of a known version."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("version") not in (VERSION, VERSION_WITH_BODIES):
            raise ValueError(f"not a GraphSpec of version {VERSION} or {VERSION_WITH_BODIES}")
        return GraphSpec(data["symbols"], data["nodes"], dict(tensors or {}), data.get("bodies", {}))

    @property
    def inputs(self) -> list[dict[str, Json]]:
        return [node for node in self.nodes if node["op"] == "input"]

    @property
    def outputs(self) -> list[Json]:
        """The encoded values that the graph returns."""
        values: list[Json] = self.nodes[-1]["args"][0]
        return values


def export(gm: fx.GraphModule, *, lift_constants: bool = False) -> GraphSpec:
    """Exports a graph at torch level or at ATen level (distinguished by ``meta["val"]``).

    Args:
        gm: not changed.
        lift_constants: write constants as inputs after the graph's own inputs, in the order of ``tensors``. A caller
            of the result then appends ``spec.tensors.values()`` to the arguments.

    Raises:
        UnsupportedError: for content without a plain data form: Python functions and objects in the graph, selective
            checkpointing, higher-order operators at ATen level, sparse and subclass tensors, data-dependent sizes. The
            error names the node and the user's file and line.
    """
    return _Export(gm, lift_constants).run()


def origin(node: fx.Node) -> str | None:
    """The user's file and line that a node comes from, e.g. ``train.py:12``, or None if the capture has not recorded
    it."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH_HOME)] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else None


class _Export:
    """One export: walks each graph once, one method per kind of node."""

    def __init__(self, gm: fx.GraphModule, lift_constants: bool) -> None:
        self._gm = gm
        self._lift = lift_constants
        self._aten = any("val" in node.meta for node in gm.graph.nodes)
        self._values = ValueWriter()
        self._tensors: dict[str, torch.Tensor] = {}
        self._bodies: dict[str, list[dict[str, Json]]] = {}
        self._storages: dict[int, int] = {}

    def run(self) -> GraphSpec:
        nodes = self._walk(self._gm, "")
        return GraphSpec(self._values.symbols, nodes, self._tensors, self._bodies)

    def _walk(self, gm: fx.GraphModule, path: str) -> list[dict[str, Json]]:
        """The nodes of the whole graph (`path` is empty) or of its body at `path`."""
        is_body = bool(path)
        nodes: list[dict[str, Json]] = []
        lifted: list[dict[str, Json]] = []
        writers = {
            "placeholder": self._body_input if is_body else self._input,
            "get_attr": lambda node: self._attr(node, gm, path),
            "call_function": self._call,
            "call_method": self._method,
            "output": self._body_output if is_body else self._output,
        }
        for node in gm.graph.nodes:
            writer = writers.get(node.op)
            if writer is None:
                raise _unsupported(node, f"it is a {node.op} node")
            try:
                written = writer(node)
            except NotRepresentableError as reason:
                raise _unsupported(node, f"it has {reason}") from None
            (lifted if self._lift and node.op == "get_attr" else nodes).append(written)
        num_inputs = sum(node["op"] == "input" for node in nodes)
        nodes[num_inputs:num_inputs] = lifted
        return nodes

    def _input(self, node: fx.Node) -> dict[str, Json]:
        value = _meta_value(node)
        written = {"name": node.name, "op": "input", "target": node.target, "type": self._values.result_type(value)}
        if written["type"] is None and not (value is None or isinstance(value, int)):
            raise NotRepresentableError(f"an input of type {type(value).__name__}")
        if not self._aten:
            written |= self._rebuild_hints(node, value)
        return written

    def _rebuild_hints(self, node: fx.Node, value: Any) -> dict[str, Json]:
        """The properties of an input, beyond its type, that affect Inductor's cache keys."""
        hints: dict[str, Json] = {"annotation": _annotation(node.type)} if node.type is not None else {}
        if isinstance(value, int):
            hints["value"] = int(value)
        if isinstance(value, torch.Tensor):
            if isinstance(value, torch.nn.Parameter):
                hints["parameter"] = True
            hints |= self._values.storage(value)
            memo = getattr(value, "item_memo", None)
            if isinstance(memo, torch.SymFloat):
                hints["item"] = self._values.float_symbol(memo)
            hints["storage"] = self._storages.setdefault(storage_of(value), len(self._storages))
            static = (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
            if static is not None:
                hints["static"] = str(static)
        if graphs.has_source(node):
            with contextlib.suppress(ValueError):
                hints["source"] = source_to_json(graphs.source_of(node))
        return hints

    def _body_input(self, node: fx.Node) -> dict[str, Json]:
        written = {"name": node.name, "op": "input", "target": node.target, "type": self._type(node)}
        return written | ({"annotation": _annotation(node.type)} if node.type is not None else {})

    def _attr(self, node: fx.Node, gm: fx.GraphModule, path: str) -> dict[str, Json]:
        target = str(node.target)
        value: Any = gm
        for part in target.split("."):
            value = getattr(value, part)
        if isinstance(value, fx.GraphModule):
            return self._body(node, value, f"{path}{target}")
        if not isinstance(value, torch.Tensor):
            raise NotRepresentableError(f"the {type(value).__name__} '{target}' as a constant")
        self._tensors[f"{path}{target}"] = value
        op = "input" if self._lift else "attr"
        return {"name": node.name, "op": op, "target": target, "type": self._values.tensor_type(value)}

    def _body(self, node: fx.Node, body: fx.GraphModule, path: str) -> dict[str, Json]:
        if self._aten:
            raise NotRepresentableError("a body for a higher-order operator, which only torch-level graphs may have")
        objects = [key for key, value in body.meta.items() if value is not None]
        if objects:
            raise NotRepresentableError(f"a body with '{objects[0].lstrip('_')}', which is a Python object")
        if path not in self._bodies:
            self._bodies[path] = []
            self._bodies[path] = self._walk(body, f"{path}.")
        return {"name": node.name, "op": "graph", "target": str(node.target)}

    def _call(self, node: fx.Node) -> dict[str, Json]:
        assert callable(node.target)
        if isinstance(node.target, HigherOrderOperator) and self._aten:
            raise NotRepresentableError(f"the higher-order operator '{node.target}' as its target")
        name = callable_name(node.target)
        if name is None:
            raise NotRepresentableError(f"{_described(node.target)} as its target, a Python function")
        return self._with_arguments(node, "call", name)

    def _method(self, node: fx.Node) -> dict[str, Json]:
        return self._with_arguments(node, "method", str(node.target))

    def _with_arguments(self, node: fx.Node, op: str, target: str) -> dict[str, Json]:
        written: dict[str, Json] = {
            "name": node.name,
            "op": op,
            "target": target,
            "args": [self._values.argument(arg) for arg in node.args],
            "kwargs": {key: self._values.argument(arg) for key, arg in node.kwargs.items()},
            "type": self._type(node),
        }
        where = origin(node)
        if where is not None:
            written["origin"] = where
        return written

    def _type(self, node: fx.Node) -> Json:
        try:
            return self._values.result_type(_meta_value(node))
        except NotRepresentableError:
            if self._aten:
                raise
            return None

    def _output(self, node: fx.Node) -> dict[str, Json]:
        results = node.args[0] if isinstance(node.args[0], list | tuple) else [node.args[0]]
        return {"name": node.name, "op": "output", "args": [[self._values.argument(value) for value in results]]}

    def _body_output(self, node: fx.Node) -> dict[str, Json]:
        return {"name": node.name, "op": "output", "args": [self._values.argument(node.args[0])]}


def _meta_value(node: fx.Node) -> Any:
    return node.meta["val"] if "val" in node.meta else node.meta.get("example_value")


def _described(target: Callable[..., Any]) -> str:
    name, home = getattr(target, "__name__", str(target)), getattr(target, "__module__", None)
    return f"'{name}' of '{home}'" if home else f"'{name}'"


def _annotation(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)


def _unsupported(node: fx.Node, reason: str) -> UnsupportedError:
    where = origin(node)
    place = f" ({where})" if where else ""
    return UnsupportedError(f"node '{node.name}'{place} cannot be exported: {reason}")
