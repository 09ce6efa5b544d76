# SPDX-License-Identifier: Apache-2.0
"""`cudagraph` and `inductor-cudagraphs`: run each direction of `aot` or of `inductor` as one CUDA graph.

Small models on a GPU spend most of a step on launching kernels. A graph launches a whole direction at once
(`captured.py`). Inductor's own graph trees are not used, because they overwrite results that are still in use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import fx

from agspeed.backends.aot import trace_for_aten
from agspeed.backends.base import Candidate, CompileOptions, Runner
from agspeed.backends.captured import CapturedDirection, CudaGraphMaker, GraphMaker
from agspeed.backends.inductor import Inductor
from agspeed.backends.joint import Half, Joint
from agspeed.backends.region import make_runner
from agspeed.errors import UnsupportedError
from agspeed.torch_compat import probe
from agspeed.torch_compat.operators import OpOverload

_WAITS = ("_local_scalar_dense", "equal", "item", "masked_select", "nonzero", "unique_consecutive", "_unique2")


class CudaGraph(Candidate):
    """Launches ATen's kernels as one graph for each direction."""

    name = "cudagraph"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)

    def unavailable(self) -> str | None:
        return probe.misfit(("memory",))

    def skip_reason(self, gm: fx.GraphModule, options: CompileOptions) -> str | None:
        return _no_gradients_early(options)

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        return make_runner(captured(trace_for_aten(gm, example_inputs), CudaGraphMaker()), gm)


class InductorCudaGraphs(Inductor):
    """Launches Inductor's kernels as one graph for each direction."""

    name = "inductor-cudagraphs"
    devices = ("cuda",)
    same_without_choices = ()

    def unavailable(self) -> str | None:
        return probe.misfit(("memory",)) or super().unavailable()

    def skip_reason(self, gm: fx.GraphModule, options: CompileOptions) -> str | None:
        return _no_gradients_early(options)

    def finished(self, joint: Joint) -> Joint:
        return captured(joint, CudaGraphMaker())


def captured(joint: Joint, maker: GraphMaker) -> Joint:
    """Returns `joint` with each direction as a graph. Raises: UnsupportedError with the reason if one cannot be
    captured."""
    if joint.forward is None or joint.backward is None or joint.signature is None:
        raise UnsupportedError("it has no backward, and only training steps are captured")
    signature = joint.signature
    if signature.mutated_by_code:
        raise UnsupportedError(f"its code changes input {signature.mutated_by_code[0]} in place")
    for half in (joint.forward, joint.backward):
        _refuse_waits(half.graph)
    num_mutated = len(signature.mutated_inputs)
    forward = CapturedDirection(
        joint.forward.run,
        maker,
        first_saved=num_mutated + signature.num_outputs,
        num_mutated=num_mutated,
        static=_parameter,
    )
    backward = CapturedDirection(
        joint.backward.run,
        maker,
        static=lambda tensor: tensor if isinstance(tensor, torch.nn.Parameter) else forward.owned(tensor),
    )
    return dataclasses.replace(joint, forward=_with(joint.forward, forward), backward=_with(joint.backward, backward))


def _with(half: Half, run: CapturedDirection) -> Half:
    return Half(half.graph, half.example_inputs, run)


def _parameter(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor if isinstance(tensor, torch.nn.Parameter) else None


def _no_gradients_early(options: CompileOptions) -> str | None:
    return "gradients leave a CUDA graph at its end only" if options.stage_bytes else None


def _refuse_waits(graph: fx.GraphModule) -> None:
    """Raises: UnsupportedError for an operator that waits for the device or moves data between device and host."""
    for node in graph.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        tags = node.target.tags
        waits = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        if waits or torch.Tag.cudagraph_unsafe in tags or node.target.overloadpacket.__name__ in _WAITS:
            raise UnsupportedError(f"{node.target} waits for the device, which no CUDA graph can hold")
        places = {value.device.type for value in _values(node) if value.ndim > 0}
        if len(places) > 1:
            raise UnsupportedError(f"{node.target} moves data between the device and the host")


def _values(node: fx.Node) -> list[torch.Tensor]:
    """Returns the example tensors of a node's inputs and outputs."""
    found = [part.meta.get("val") for part in (*node.all_input_nodes, node)]
    return [value for value in found if isinstance(value, torch.Tensor)]
