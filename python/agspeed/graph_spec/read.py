# SPDX-License-Identifier: Apache-2.0
"""Rebuilds an fx.GraphModule from a GraphSpec, with the same names, order and example inputs.

A graph from a torch-level spec has the same keys in Inductor's caches as the original graph. So a child process can
compile it, and the training process loads the result. All data is checked; nothing is unpickled. The functions are
stateless; the fake mode of a rebuilt graph belongs to that graph. One thread.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch import fx

from agspeed.errors import UnsupportedError
from agspeed.graph_spec.export import GraphSpec
from agspeed.graph_spec.names import DTYPES, resolve_callable, source_from_json
from agspeed.torch_compat import graphs, shapes
from agspeed.torch_compat.dynamo import ConstantSource
from agspeed.torch_compat.shapes import (
    CompileId,
    DimDynamic,
    FakeTensor,
    FakeTensorMode,
    FloorDiv,
    Max,
    Min,
    Mod,
    ShapeEnv,
    ValueRanges,
    int_oo,
)

_ANNOTATIONS: dict[str, type] = {
    "torch.Tensor": torch.Tensor,
    "torch.SymInt": torch.SymInt,
    shapes.FAKE_TENSOR: FakeTensor,
    "torch.nn.parameter.Parameter": torch.nn.Parameter,
    "builtins.int": int,
}


def rebuild(spec: GraphSpec, tensors: Mapping[str, torch.Tensor] | None = None) -> fx.GraphModule:
    """Builds a graph that computes what the exported one computed.

    Args:
        spec: a result of `graph_spec.export`, at torch or ATen level.
        tensors: constants by name; default ``spec.tensors``.

    Returns:
        A new GraphModule. Placeholders have ``meta["example_value"]`` (torch level) or ``meta["val"]`` (ATen level):
        fake tensors with the original's sizes, strides, gradient flags and Parameter kind, and symbolic integers with
        hints.

    Raises:
        UnsupportedError: if an operator or function of the graph does not exist in this process.
    """
    return _Rebuild(spec, spec.tensors if tensors is None else tensors).run()


def example_inputs(gm: fx.GraphModule) -> list[Any]:
    """The example values of a graph's inputs, in order. A Dynamo backend receives them with the graph."""
    keys = ("val", "example_value")
    return [next((n.meta[k] for k in keys if k in n.meta), None) for n in gm.graph.find_nodes(op="placeholder")]


def _module(graph: fx.Graph, tensors: Mapping[str, Any]) -> fx.GraphModule:
    """Makes a module with the attributes that Dynamo adds: AOTAutograd reads there which inputs are parameters."""
    gm = fx.GraphModule(dict(tensors), graph)
    gm.meta["dynamo_compile_id"] = CompileId(frame_id=0, frame_compile_id=0)
    constants = [name for name, value in tensors.items() if isinstance(value, torch.Tensor)]
    graphs.note_parameters(gm, constants)
    return gm


class _Rebuild:
    """One reading: walks the nodes once, one method per kind of node."""

    def __init__(self, spec: GraphSpec, tensors: Mapping[str, torch.Tensor]) -> None:
        self._spec = spec
        self._tensors = tensors
        self._graph = fx.Graph()
        self._nodes: dict[str, fx.Node] = {}
        self._shape_env = ShapeEnv()
        self._fake_mode = FakeTensorMode(shape_env=self._shape_env)
        self._symbols = {entry["name"]: self._symbol(entry) for entry in spec.symbols}
        self._storages: dict[int, torch.Tensor] = {}
        self._aten = not any("annotation" in node or "storage" in node for node in spec.nodes)

    def run(self) -> fx.GraphModule:
        bodies: dict[str, fx.GraphModule] = {}
        for path in sorted(self._spec.bodies, key=lambda path: -path.count(".")):  # inner bodies first
            graph = self._read(self._spec.bodies[path], is_body=True)
            bodies[path] = fx.GraphModule(self._held(self._spec.bodies[path], f"{path}.", bodies), graph)
        graph = self._read(self._spec.nodes, is_body=False)
        shapes.forget_floats(self._shape_env)
        return _module(graph, self._held(self._spec.nodes, "", bodies))

    def _read(self, entries: list[dict[str, Any]], *, is_body: bool) -> fx.Graph:
        self._graph, self._nodes = fx.Graph(), {}
        readers = {
            "input": self._body_input if is_body else self._input,
            "attr": self._attribute,
            "graph": self._attribute,
            "call": self._call,
            "method": self._method,
            "output": self._body_output if is_body else self._output,
        }
        for entry in entries:
            node = readers[entry["op"]](entry)
            if node.name != entry["name"]:
                graphs.rename(node, entry["name"])
            self._nodes[entry["name"]] = node
        return self._graph

    def _held(
        self, entries: list[dict[str, Any]], path: str, bodies: Mapping[str, fx.GraphModule]
    ) -> dict[str, torch.Tensor | fx.GraphModule]:
        """The attributes of the graph at `path`: constants and bodies."""
        homes: dict[str, Mapping[str, Any]] = {"attr": self._tensors, "graph": bodies}
        used = [(entry["target"], homes[entry["op"]]) for entry in entries if entry["op"] in homes]
        return {name: home[path + name] for name, home in used}

    def _symbol(self, entry: dict[str, Any]) -> sympy.Expr:
        """Creates a symbol with the recorded name, hint and range. Cache keys contain the names of symbols."""
        source = source_from_json(entry.get("source")) or ConstantSource(entry["torch"])
        index = int(str(entry["torch"]).lstrip("szuf"))
        env = self._shape_env
        with shapes.numbering(env, index):
            symbol = env.create_symbol(
                entry["hint"],
                source,
                DimDynamic.DYNAMIC,
                positive=True if entry.get("positive", True) else None,
                do_not_specialize_zero_one=True,
            )
        if "range" in entry:
            lower, upper = entry["range"]
            env.var_to_range[symbol] = ValueRanges(
                -int_oo if lower is None else lower, int_oo if upper is None else upper
            )
        return symbol

    def _input(self, entry: dict[str, Any]) -> fx.Node:
        kind = _ANNOTATIONS.get(entry.get("annotation", ""))
        node = self._graph.create_node("placeholder", entry["target"], name=entry["name"], type_expr=kind)
        node.meta["val" if self._aten else "example_value"] = self._example(entry)
        if not self._aten:
            graphs.set_source(node, source_from_json(entry.get("source")))
            node.meta["tensor_dict"] = {"_dynamo_static_input_type": entry["static"]} if "static" in entry else {}
        return node

    def _example(self, entry: dict[str, Any]) -> Any:
        form = entry["type"]
        if form is None:
            return entry.get("value")
        if "sym" in form:
            return self._size(form["sym"])
        with self._fake_mode:
            tensor = self._fake_tensor(form, entry)
        if entry.get("parameter"):
            return torch.nn.Parameter(tensor, requires_grad=form["requires_grad"])
        if "item" in entry:
            fake: Any = tensor
            fake.item_memo = self._float(entry["item"])
        return tensor.requires_grad_(form["requires_grad"])

    def _fake_tensor(self, form: dict[str, Any], entry: dict[str, Any]) -> torch.Tensor:
        shape = [self._size(n) for n in form["shape"]]
        stride = [self._size(n) for n in form["stride"]]
        dtype, device = DTYPES[form["dtype"]], torch.device(form["device"])
        offset = self._size(entry.get("storage_offset", 0))
        base = self._storages.get(entry.get("storage", -1))
        if base is None:
            base = torch.empty_strided(shape, stride, dtype=dtype, device=device)
            if "storage_bytes" in entry:
                base = torch.empty(entry["storage_bytes"] // dtype.itemsize, dtype=dtype, device=device)
            elif "storage_offset" in entry:
                base = torch.empty(self._flat_size(shape, stride, offset), dtype=dtype, device=device)
            if "storage" in entry:
                self._storages[entry["storage"]] = base
            if "storage_bytes" not in entry and "storage_offset" not in entry:
                return base
        return base.detach().as_strided(shape, stride, offset).detach()

    def _float(self, entry: dict[str, Any]) -> Any:
        symbol = self._symbol(entry)
        value = self._shape_env.create_symfloatnode(symbol, hint=entry["hint"])
        if entry["fixed"]:
            shapes.specialize(self._shape_env, symbol, sympy.Float(entry["hint"]))
        return value

    def _flat_size(self, shape: list[Any], stride: list[Any], offset: Any) -> Any:
        return offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))

    def _body_input(self, entry: dict[str, Any]) -> fx.Node:
        kind = _ANNOTATIONS.get(entry.get("annotation", ""))
        return self._graph.create_node("placeholder", entry["target"], name=entry["name"], type_expr=kind)

    def _attribute(self, entry: dict[str, Any]) -> fx.Node:
        return self._graph.create_node("get_attr", entry["target"], name=entry["name"])

    def _call(self, entry: dict[str, Any]) -> fx.Node:
        try:
            target = resolve_callable(entry["target"])
        except ValueError as error:
            raise UnsupportedError(f"node '{entry['name']}' cannot be rebuilt: {error}") from None
        return self._create("call_function", target, entry)

    def _method(self, entry: dict[str, Any]) -> fx.Node:
        return self._create("call_method", entry["target"], entry)

    def _create(self, op: str, target: Any, entry: dict[str, Any]) -> fx.Node:
        args = tuple(self._argument(arg) for arg in entry["args"])
        kwargs = {key: self._argument(arg) for key, arg in entry["kwargs"].items()}
        node = self._graph.create_node(op, target, args, kwargs, name=entry["name"])
        if "origin" in entry:
            path, _, line = entry["origin"].rpartition(":")
            node.meta["stack_trace"] = f'  File "{path}", line {line}, in <module>\n'
        # Inductor refuses to cache method calls on nodes without an example value, whatever that value is.
        node.meta["val" if self._aten else "example_value"] = None
        return node

    def _output(self, entry: dict[str, Any]) -> fx.Node:
        results = tuple(self._argument(value) for value in entry["args"][0])
        return self._graph.create_node("output", "output", (results,), name=entry["name"])

    def _body_output(self, entry: dict[str, Any]) -> fx.Node:
        return self._graph.create_node("output", "output", (self._argument(entry["args"][0]),), name=entry["name"])

    def _argument(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        return _READERS[kind](self, inner)

    def _size(self, value: int | str) -> Any:
        if isinstance(value, int):
            return value
        expr = _parse_size(value, self._symbols)
        hint = int(expr.xreplace(self._shape_env.backed_var_to_val))
        return self._shape_env.create_symintnode(expr, hint=hint)


_READERS: dict[str, Any] = {
    "ref": lambda self, name: self._nodes[name],
    "tuple": lambda self, items: tuple(self._argument(item) for item in items),
    "dict": lambda self, items: {self._argument(k): self._argument(v) for k, v in items},
    "slice": lambda self, bounds: slice(*(self._argument(bound) for bound in bounds)),
    "ellipsis": lambda self, _: Ellipsis,
    "dtype": lambda self, name: DTYPES[name],
    "device": lambda self, name: torch.device(name),
    "layout": lambda self, name: {"strided": torch.strided, "sparse_coo": torch.sparse_coo}[name],
    "memory_format": lambda self, name: getattr(torch, name),
    "sym": lambda self, text: self._size(text),
    "float": lambda self, text: float(text),
    "complex": lambda self, parts: complex(*(self._argument(part) for part in parts)),
}


def _parse_size(text: str, symbols: Mapping[str, sympy.Expr]) -> sympy.Expr:
    """Parses SymExpr text. Its grammar is a subset of Python's, so Python's parser reads it. No code is executed."""

    def read(node: ast.AST) -> sympy.Expr:
        match node:
            case ast.Constant(value=int(number)):
                return sympy.Integer(number)
            case ast.Name(id=name) if name in symbols:
                return symbols[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -read(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in operators:
                return operators[type(op)](read(left), read(right))
            case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in functions:
                return functions[name](read(a), read(b))
        raise ValueError(f"'{text}' is not a size expression")

    operators: dict[type, Any] = {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.FloorDiv: FloorDiv,
        ast.Mod: Mod,
    }
    functions: dict[str, Any] = {"max": Max, "min": Min}
    return read(ast.parse(text, mode="eval").body)
