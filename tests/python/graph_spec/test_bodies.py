# SPDX-License-Identifier: Apache-2.0
"""Graphs whose operators call other graphs, and calls without effect, are the same after export to JSON and import."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._functorch.partitioners import default_partition
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.scan import scan
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from agspeed.backends.aot import run_by_aten
from agspeed.backends.joint import trace
from agspeed.backends.region import make_runner
from agspeed.errors import UnsupportedError
from agspeed.graph_spec.export import GraphSpec, export
from agspeed.graph_spec.names import callable_name, resolve_callable
from agspeed.graph_spec.read import example_inputs, rebuild
from tests.python.support.captured_graphs import capture, capture_aten

pytestmark = pytest.mark.smoke

Function = Callable[..., Any]


class ScaledSquare(torch.autograd.Function):
    """Its gradient is deliberately not the derivative, so that a lost body shows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 5 * gradient * x * ctx.scale, None


class Checkpointed(nn.Module):
    """A checkpointed block that contains another checkpointed part."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.inner = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self._block, x.sin(), use_reentrant=False)
        return y * 2

    def _block(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(lambda z: self.inner(z).tanh(), self.outer(x), use_reentrant=False)
        return functional.dropout(y, 0.5)


class WithHook(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 2)
        return y * y


@torch.compiler.nested_compile_region
def nested(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def logging_and_checks(x: torch.Tensor) -> torch.Tensor:
    torch._C._log_api_usage_once("tests.graph_spec")
    torch._check(x.shape[0] > 2)
    torch._assert(x.shape[1] > 2, "too narrow")
    torch._assert_async((x.detach() < 1e9).all())
    with torch.profiler.record_function("a part"):
        y = x.sin()
    with torch.no_grad():
        scale = y.sum()
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return y * scale


def flex(x: torch.Tensor) -> Any:
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")
    heads = x.detach().reshape(1, 1, 128, 8)
    return flex_attention(heads, heads, heads, score_mod=lambda s, b, h, q, k: s + (q - k), block_mask=mask)


def condition(x: torch.Tensor) -> Any:
    offset = torch.ones(8)
    return torch.cond(x.sum() > 0, lambda y: y.sin() + offset, lambda y: y.cos() * 2, (x,))


def loop(x: torch.Tensor) -> Any:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin()), (torch.tensor(0), x.detach()))[1]


def gradient(x: torch.Tensor) -> Any:
    return torch.func.grad(lambda y: (y**3).sum())(x.detach())


def numpy_call(x: torch.Tensor) -> torch.Tensor:
    return x * torch.from_numpy(np.sqrt(np.abs(x.detach().numpy()).reshape(-1, 8)) + 1)


FUNCTIONS: dict[str, tuple[Function, str | tuple[str, str]]] = {
    # keep-sorted
    "autograd function": (lambda x: ScaledSquare.apply(x.sin(), 1.5), "fwd_body"),
    "checkpoint": (Checkpointed(), "wrap_body"),
    "cond": (condition, "cond_true"),
    "flex attention": (flex, "score_mod"),
    "functorch": (gradient, ""),
    "gradient hook": (WithHook(), ("fwd_body", "hook_body")),  # before and since torch 2.15
    "logging and checks": (logging_and_checks, ""),
    "nested region": (lambda x: nested(nested(x)), "subgraph"),
    "numpy": (numpy_call, ""),
    "scan": (lambda x: scan(lambda c, y: (c + y, c * y), x[0], x, dim=0)[1], "scan_combine_fn"),
    "vmap": (lambda x: torch.vmap(lambda y: y.sum() * y)(x), ""),
    "while loop": (loop, "body_fn"),
}


def _batch(rows: int = 128) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, 8, requires_grad=True)


def _results(gm: Function, inputs: list[Any]) -> list[torch.Tensor]:
    """Returns outputs and gradients of a run with fresh copies of `inputs`."""
    torch.manual_seed(7)
    mine = [
        v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else int(v) for v in inputs
    ]
    outputs = [value for value in gm(*mine) if isinstance(value, torch.Tensor)]
    wanted = [value for value in mine if isinstance(value, torch.Tensor) and value.requires_grad]
    differentiable = [value for value in outputs if value.requires_grad]
    if differentiable and wanted:
        total = torch.stack([value.sum() for value in differentiable]).sum()
        outputs += [g for g in torch.autograd.grad(total, wanted, allow_unused=True) if g is not None]
    return outputs


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_returns_unchanged_and_computes_the_same(name: str, dynamic: bool) -> None:
    function, body = FUNCTIONS[name]
    if dynamic and name in ("flex attention", "scan"):
        pytest.skip("Dynamo captures it for fixed sizes only")
    ((gm, inputs),) = capture(function, _batch(), dynamic=dynamic)
    spec = export(gm)
    assert any(path.startswith(body) for path in spec.bodies) if body else not spec.bodies, list(spec.bodies)
    assert json.loads(spec.to_json())["version"] == (2 if body else 1)
    back = rebuild(GraphSpec.from_json(spec.to_json(), spec.tensors))
    assert _code(back) == _code(gm)
    if body == "subgraph":
        return  # torch can only run it compiled
    expected, result = _results(gm, inputs), _results(back, inputs)
    assert len(expected) == len(result)
    assert all(torch.equal(a, b) for a, b in zip(expected, result, strict=True))


def _code(gm: torch.fx.GraphModule) -> dict[str, str]:
    return {path: part.code for path, part in gm.named_modules() if isinstance(part, torch.fx.GraphModule)}


@pytest.mark.parametrize(
    "name", [name for name, (_, body) in FUNCTIONS.items() if body not in ("body_fn", "score_mod")]
)
def test_compiles_to_the_same_after_the_way_back(name: str) -> None:
    """AOTAutograd makes the same graphs from it in both directions, so that caches contain what a child compiled."""
    ((gm, inputs),) = capture(FUNCTIONS[name][0], _batch())
    codes, results = [], []
    for graph in (rebuild(export(gm)), gm):
        joint = trace(
            graph,
            example_inputs(graph),
            compiler=run_by_aten,
            inference_compiler=run_by_aten,
            partition_fn=default_partition,
        )
        codes.append([_code(half.graph) for half in (joint.forward, joint.backward) if half is not None])
        results.append(_results(make_runner(joint, graph), inputs))
    assert codes[0] == codes[1]
    assert results[0] and len(results[0]) == len(results[1])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_body_shared_by_two_calls_is_written_once() -> None:
    ((gm, _),) = capture(FUNCTIONS["nested region"][0], _batch())
    spec = export(gm)
    assert sum(node["op"] == "graph" for node in spec.nodes) == 2
    assert list(spec.bodies) == ["subgraph_0"]


def test_body_within_a_body_lies_under_its_path() -> None:
    ((gm, _),) = capture(Checkpointed(), _batch())
    inner, outer = sorted(export(gm).bodies, key=len, reverse=True)
    assert inner.startswith(f"{outer}.wrap_body")


def test_constant_of_a_body_lies_under_its_path() -> None:
    root, graph = nn.Module(), torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.add, (x, graph.get_attr("offset"))),))
    body = torch.fx.GraphModule({"offset": torch.arange(3.0)}, graph)
    outer = torch.fx.Graph()
    y = outer.placeholder("y")
    result = outer.call_function(
        torch.ops.higher_order.cond, (True, outer.get_attr("body"), outer.get_attr("body"), (y,))
    )
    outer.output((result,))
    root.body = body
    spec = export(torch.fx.GraphModule(root, outer))
    assert list(spec.tensors) == ["body.offset"]
    back = rebuild(GraphSpec.from_json(spec.to_json(), spec.tensors))
    assert torch.equal(back.body(torch.ones(3))[0], torch.arange(3.0) + 1)  # type: ignore[operator]


def keep_nothing(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


def test_selective_checkpointing_is_refused_with_the_users_line() -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_nothing)
    ((gm, _),) = capture(lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts), _batch())
    with pytest.raises(UnsupportedError, match=r"test_bodies.py:[0-9]+\).*'checkpoint_context_fn'"):
        export(gm)


@torch._dynamo.allow_in_graph
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def test_python_function_in_a_graph_is_refused_by_name() -> None:
    ((gm, _),) = capture(lambda x: opaque(x) * 2, _batch())
    with pytest.raises(UnsupportedError, match=r"test_bodies.py:[0-9]+\).*'opaque' of 'tests.*a Python function"):
        export(gm)


def test_higher_order_operators_are_refused_at_aten_level() -> None:
    (forward, *_) = capture_aten(lambda x: condition(x)[0], _batch())
    with pytest.raises(UnsupportedError, match="only torch-level graphs"):
        export(forward)


@pytest.mark.parametrize("name", ["numpy.sqrt", "numpy.linalg.norm", "numpy.method.reshape", "numpy.operator.add"])
def test_functions_of_numpy_have_names(name: str) -> None:
    assert callable_name(resolve_callable(name)) == name


@pytest.mark.parametrize("name", ["numpy.load", "numpy.random.rand", "numpy.method.nothing", "numpy.operator.nothing"])
def test_other_names_of_numpy_mean_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        resolve_callable(name)


def test_operators_that_need_more_than_their_arguments_have_no_name() -> None:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    assert callable_name(triton_kernel_wrapper_mutation) is None
    with pytest.raises(ValueError, match="higher_order"):
        resolve_callable("higher_order.triton_kernel_wrapper_mutation")
