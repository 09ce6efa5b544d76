# SPDX-License-Identifier: Apache-2.0
"""`aot`: runs AOTAutograd's forward and backward ATen graphs with ATen.

It saves autograd's bookkeeping and recomputes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from agspeed.backends.base import Candidate, CompileOptions, Runner
from agspeed.backends.fast_masks import draw_fast
from agspeed.backends.joint import BoxedRunner, Joint, trace
from agspeed.backends.region import make_runner
from agspeed.backends.stages import cut
from agspeed.torch_compat.aot_autograd import default_partition, mark_boxed


class Aot(Candidate):
    """Runs ATen graphs in both directions behind one autograd node."""

    name = "aot"
    in_process = True

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        joint = trace_for_aten(gm, example_inputs)
        stages = cut(joint, options.stage_bytes) if options.stage_bytes and joint.backward is not None else None
        runs = [run_by_aten(part.graph, ()) for part in stages.parts] if stages is not None else []
        return make_runner(joint, gm, stages, runs)


def trace_for_aten(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Joint:
    """Traces both directions as ATen graphs. Raises: UnsupportedError with the reason."""
    return trace(
        gm,
        example_inputs,
        compiler=_run_with_fast_draws,
        inference_compiler=_run_with_fast_draws,
        partition_fn=default_partition,
    )


def _run_with_fast_draws(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedRunner:
    draw_fast(graph)
    return run_by_aten(graph, example_inputs)


def run_by_aten(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedRunner:
    """A graph compiler that compiles nothing: FX's generated Python code calls ATen."""
    forward: Callable[..., Sequence[Any]] = graph.forward

    def run(args: list[Any]) -> Sequence[Any]:
        inputs = tuple(args)
        args.clear()
        return forward(*inputs)

    mark_boxed(run)
    return run
