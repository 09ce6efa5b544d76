# SPDX-License-Identifier: Apache-2.0
"""Native compile time of a LayerNorm-GELU block: from both ATen graphs to an Executable, first compile of a process.

The time includes code generation, linking and loading, but not tracing. No object cache is used.
"""

import time
from typing import Any

import torch
from torch import Tensor, fx, nn

from benchmarks.measure.machine import Watch
from benchmarks.measure.statistics import median_estimate
from benchmarks.workloads import data

_PROCESSES = 7


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    return [{} for _ in range(_PROCESSES)]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    from agspeed import _native

    entries = {name: _spec_of(graph) for name, graph in traced_block().items()}
    watch, started = Watch(spec["cores"]), time.perf_counter()
    executable = _native.compile(entries, {})
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "stats": executable.stats(), "environment": watch.read()}


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def traced_block() -> dict[str, fx.GraphModule]:
    """Returns forward and backward ATen graphs of norm, product, GELU, product and residual, on photo patches."""
    from torch._decomp import get_decompositions
    from torch._functorch.aot_autograd import aot_module, make_boxed_func

    aten = torch.ops.aten
    split = [aten.native_layer_norm, aten.native_layer_norm_backward, aten.gelu, aten.gelu_backward]
    block = Residual(nn.LayerNorm(192), nn.Linear(192, 384), nn.GELU(), nn.Linear(384, 192))
    graphs: dict[str, fx.GraphModule] = {}

    def keep(name: str) -> Any:
        def compiler(graph: fx.GraphModule, inputs: list[Any]) -> Any:
            return make_boxed_func(graphs.setdefault(name, graph))

        return compiler

    x = data.photo_patches(8, 256, seed=1)[0].flatten(1)
    traced = aot_module(block, keep("forward"), keep("backward"), decompositions=get_decompositions(split))
    traced(x).square().mean().backward()
    return graphs


def _spec_of(graph: fx.GraphModule) -> str:
    from agspeed.graph_spec.export import export

    return export(graph).to_json()


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [row["seconds"] for row in results]
    return {"status": "ok", "seconds": median_estimate(seconds).to_dict(), "runs": results}
