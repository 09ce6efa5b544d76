# SPDX-License-Identifier: Apache-2.0
"""A graph is the same after export to JSON and import: code, example inputs and results. Other graphs are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional

from agspeed.graph_spec.export import GraphSpec, export
from agspeed.graph_spec.names import callable_name, resolve_callable
from agspeed.graph_spec.read import example_inputs, rebuild
from tests.python.support.captured_graphs import capture, capture_aten


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        y = functional.dropout(self.norm(self.convolution(x)), 0.1, self.training).relu()
        y = y.to(torch.bfloat16).float()[..., 1:].flatten(2).mean(-1)
        with torch.autocast("cpu"):
            z = self.linear(y)
        with torch.no_grad():
            size = z.sum() + float("inf")
        parts = (z.float() * self.scale).split(2, dim=-1)
        return parts, size, torch.arange(x.shape[0], device=x.device), y[:, None].expand(-1, 2, -1).sum((0, 1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_level_graph_returns_unchanged(dynamic: bool) -> None:
    ((gm, _),) = capture(Block(), torch.randn(6, 3, 5, 5), dynamic=dynamic)
    spec = export(gm)
    back = rebuild(GraphSpec.from_json(spec.to_json(), spec.tensors))
    assert back.code == gm.code
    assert [node.name for node in back.graph.nodes] == [node.name for node in gm.graph.nodes]
    _assert_same_examples(example_inputs(gm), example_inputs(back))
    again = export(back)
    assert _content(again) == _content(spec)
    assert again.symbols == spec.symbols
    assert bool(spec.symbols) == dynamic


def _content(spec: GraphSpec) -> list[dict[str, Any]]:
    """Returns the data that decide what the graph computes, without source positions and without derived types."""
    excluded = {"annotation", "origin", "source"}
    nodes = [(node, excluded | {"type"} if node["op"] in ("call", "method") else excluded) for node in spec.nodes]
    return [{key: value for key, value in node.items() if key not in left_out} for node, left_out in nodes]


def _assert_same_examples(before: Sequence[Any], after: Sequence[Any]) -> None:
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        if not isinstance(a, torch.Tensor):
            assert str(a) == str(b)
            continue
        assert isinstance(b, torch._subclasses.FakeTensor)
        assert isinstance(a, torch.nn.Parameter) == isinstance(b, torch.nn.Parameter)
        assert [str(n) for n in (*a.shape, *a.stride())] == [str(n) for n in (*b.shape, *b.stride())]
        assert (a.dtype, a.device, a.requires_grad) == (b.dtype, b.device, b.requires_grad)


def test_rebuilt_graph_computes_the_same() -> None:
    model, x = Block(), torch.randn(6, 3, 5, 5)
    ((gm, inputs),) = capture(model, x)
    back = rebuild(export(gm))
    results = []
    for graph in (gm, back):
        torch.manual_seed(0)
        results.append(graph(*[v.detach().clone().requires_grad_(v.requires_grad) for v in inputs]))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dynamic", [False, True])
def test_aten_graphs_in_both_directions(dynamic: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = functional.layer_norm(x @ w, (8,))
        return torch.cat([y[:, 1:], y.new_zeros(y.shape[0], 2)], 1) * torch.tensor([1.5])

    graphs = capture_aten(function, torch.randn(6, 8), torch.randn(8, 8, requires_grad=True), dynamic=dynamic)
    assert len(graphs) == 2
    for gm in graphs:
        spec = export(gm)
        assert rebuild(spec).code == gm.code
        for node in spec.nodes:
            assert node["op"] in ("input", "attr", "call", "output")
            if node["op"] == "call":
                assert node["type"] is not None
                assert node["target"].startswith(("aten.", "operator."))
        assert json.loads(spec.to_json())["version"] == 1
    lifted = export(graphs[0], lift_constants=True)
    assert [node["target"] for node in lifted.inputs][-1] == list(lifted.tensors)[-1]
    assert not any(node["op"] == "attr" for node in lifted.nodes)


def test_sizes_are_expressions_over_numbered_symbols() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 4).sum(1)[: x.shape[0] // 2 + 1] * w

    (forward, _) = capture_aten(function, torch.randn(6, 8), torch.randn(1, requires_grad=True), dynamic=True)
    spec = export(forward)
    assert [symbol["name"] for symbol in spec.symbols][:1] == ["s0"]
    assert spec.symbols[0]["hint"] == 6
    sizes = {str(size) for node in spec.nodes if node.get("type") for size in node["type"].get("shape", [])}
    assert any("//" in size for size in sizes), sizes


def test_origin_is_the_users_line() -> None:
    ((gm, _),) = capture(lambda x: functional.gelu(x) + 1, torch.ones(2))
    origins = [node["origin"] for node in export(gm).nodes if node["op"] == "call"]
    assert all(origin.split(":")[0].endswith("test_graph_spec.py") for origin in origins)


def test_every_kind_of_argument() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    values = [1, -0.0, float("inf"), float("-inf"), True, None, "mean", 1 + 2j, (1, [2, x]), slice(None, 2), ...]
    values += [torch.float32, torch.device("cpu"), torch.strided, torch.channels_last, {"a": (x,)}]
    graph.output((graph.call_function(torch.add, (x, list(values))),))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    back = rebuild(GraphSpec.from_json(export(gm).to_json()))
    read = next(node for node in back.graph.nodes if node.op == "call_function").args[1]
    assert str(read) == str(list(gm.graph.nodes)[1].args[1])
    spec = export(gm).nodes[1]["args"][1]
    assert spec[2] == {"float": "inf"}


@pytest.mark.parametrize(
    "name",
    ["os.system", "builtins.eval", "builtins.exec", "torch.load", "torch.hub.load", "torch.os.system", "torch",
     "torch.nn.Linear", "torch.serialization.load", "torch.utils.cpp_extension.load", "sys.exit", "aten.nothing.x"],
)  # fmt: skip
def test_names_resolve_to_functions_of_graphs_only(name: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        resolve_callable(name)


@pytest.mark.parametrize(
    "function",
    [torch.relu, functional.linear, functional.gelu, torch._C._nn.linear, torch.fft.fft, torch.ops.aten.add.Tensor,
     torch.ops.aten.add, max, torch.Tensor.add_, torch.amp.autocast_mode._enter_autocast, torch._C._set_grad_enabled],
)  # fmt: skip
def test_names_lead_back_to_the_same_function(function: Any) -> None:
    name = callable_name(function)
    assert name is not None
    assert resolve_callable(name) is function


def test_other_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="version 1 or 2"):
        GraphSpec.from_json('{"version": 3, "symbols": [], "nodes": []}')
