# SPDX-License-Identifier: Apache-2.0
"""Uses AOTAutograd as a library: turns a torch-level graph into forward and backward ATen graphs with a signature.

AOTAutograd's own runtime wrappers cost tens of microseconds per call, and their results cannot be differentiated twice.
This module uses AOTAutograd to functionalise the graph, to trace the joint graph and to partition it. It records the
compiled code of both halves and passes it with a `RegionSignature` to agspeed's autograd node
(`agspeed.backends.region`).

If the node cannot express a graph's signature, this module raises `UnsupportedError` with the reason, and the region
stays eager. Graphs without a backward (captured under ``no_grad``) use AOTAutograd's callable without the node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from agspeed.errors import UnsupportedError
from agspeed.torch_compat import aot_autograd, dynamo
from agspeed.torch_compat.aot_autograd import OutputType, ViewAndMutationMeta, aot_module_simplified
from agspeed.torch_compat.graphs import grad_switches, outputs_of
from agspeed.torch_compat.shapes import FakeTensor, TracingContext, detect_fake_mode, tracing

BoxedRunner = Callable[[list[Any]], Sequence[Any]]
GraphCompiler = Callable[[fx.GraphModule, Sequence[Any]], BoxedRunner]

_NO_ALIAS = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
_EXPRESSIBLE = (*_NO_ALIAS, OutputType.is_input, OutputType.alias_of_input)


@dataclass(frozen=True)
class RegionSignature:
    """The inputs and outputs of a region's forward and backward graphs.

    forward:  inputs -> mutated_inputs..., user outputs..., saved tensors..., saved integers...
    backward: saved integers..., saved tensors..., tangents... -> one gradient or None per input
    """

    num_inputs: int
    mutated_inputs: tuple[int, ...]
    """For each leading forward output: the input into which it must be copied."""
    mutated_by_code: tuple[int, ...]
    """Inputs that the compiled forward itself changes."""
    outputs_as_inputs: dict[int, int]
    """{user output that is an input, after mutations: that input}."""
    output_views: dict[int, int]
    """{user output that is a view of an input: that input}."""
    output_requires_grad: tuple[bool, ...]
    """One flag per user output. Outputs with True have a tangent in the backward graph, in the same order."""
    num_saved_tensors: int
    overwritten_saved: tuple[int, ...]
    """Saved tensors without other users ("donated"): a backward may be compiled to write into their memory."""
    num_saved_integers: int
    input_requires_grad: tuple[bool, ...]
    gradient_sources: tuple[tuple[int, ...], ...]
    """For each input: the tangents from which its gradient is computed."""

    @property
    def num_outputs(self) -> int:
        return len(self.output_requires_grad)


@dataclass
class Half:
    """One traced and compiled graph: its FX module, its example inputs and the boxed callable made from it."""

    graph: fx.GraphModule
    example_inputs: Sequence[Any]
    run: BoxedRunner


@dataclass
class Joint:
    """Both halves with their signature; for graphs without a backward, only AOTAutograd's callable (`inference`)."""

    forward: Half | None
    backward: Half | None
    signature: RegionSignature | None
    inference: Callable[..., Sequence[Any]] | None

    def tangents(self) -> Sequence[Any]:
        """Returns the example gradients of the differentiable outputs. Requires both halves."""
        assert self.backward is not None and self.signature is not None
        examples = self.backward.example_inputs
        return examples[len(examples) - sum(self.signature.output_requires_grad) :]


class Recorder:
    """Wraps graph compilers and records their inputs and results."""

    def __init__(self) -> None:
        self.halves: dict[str, Half] = {}
        self.metadata: ViewAndMutationMeta | None = None

    def wrap(self, role: str, compiler: GraphCompiler) -> Any:
        """Returns `compiler` with its results recorded under `role` ("forward", "backward" or "inference")."""

        def compile_and_record(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedRunner:
            return self.record(role, graph, example_inputs, compiler(graph, example_inputs))

        return compile_and_record

    def record(self, role: str, graph: fx.GraphModule, inputs: Sequence[Any], run: BoxedRunner) -> BoxedRunner:
        self.halves[role] = Half(graph, inputs, run)
        context = TracingContext.try_get()
        if role == "forward" and context is not None:
            self.metadata = context.fw_metadata
        return run


def fake_inputs(gm: fx.GraphModule) -> list[Any]:
    """Returns the FakeTensor or SymInt of each placeholder of a graph captured by Dynamo."""
    return [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]


def new_context(example_inputs: Sequence[Any]) -> TracingContext:
    """Returns the tracing context that AOTAutograd and the compilers of both halves of one region share."""
    return TracingContext(detect_fake_mode(list(example_inputs)))


@contextlib.contextmanager
def aot_settings(context: TracingContext) -> Iterator[None]:
    """Sets AOTAutograd's configuration for regions inside the block: both halves at once, no autograd cache."""
    with (
        aot_autograd.settings(
            force_non_lazy_backward_lowering=True,
            donated_buffer=True,
            enable_autograd_cache=False,
        ),
        tracing(context),
        dynamo.preserve_rng_state(),
    ):
        yield


def trace(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    compiler: GraphCompiler,
    inference_compiler: GraphCompiler,
    partition_fn: Callable[..., Any],
    decompositions: dict[Any, Any] | None = None,
) -> Joint:
    """Traces `gm` and compiles both halves with `compiler`. Raises: UnsupportedError with the reason."""
    refuse_gradients_of_its_own(gm)
    recorder = Recorder()
    with aot_settings(new_context(example_inputs)):
        from_aot = aot_module_simplified(
            gm,
            list(example_inputs),
            fw_compiler=recorder.wrap("forward", compiler),
            bw_compiler=recorder.wrap("backward", compiler),
            inference_compiler=recorder.wrap("inference", inference_compiler),
            partition_fn=partition_fn,
            decompositions=decompositions,
        )
    return finish(recorder, from_aot, example_inputs)


def refuse_gradients_of_its_own(gm: fx.GraphModule) -> None:
    """Raises: UnsupportedError if a region enables gradients that its caller has disabled, or makes a tensor require
    grad. AOTAutograd's code would record no autograd graph there. The last switch in the graph restores the caller's
    mode."""
    switches = [node.args[0] for node in grad_switches(gm)]
    switches_on = True in switches and switches[-1] is False
    if switches_on or gm.graph.find_nodes(op="call_method", target="requires_grad_"):
        raise UnsupportedError("the region switches gradients on that its caller has off")


def finish(recorder: Recorder, callable_from_aot: Callable[..., Sequence[Any]], example_inputs: Sequence[Any]) -> Joint:
    """Makes a Joint from the recordings of one AOTAutograd run. Raises: UnsupportedError with the reason."""
    forward = recorder.halves.get("forward")
    if forward is None:
        return Joint(None, None, None, callable_from_aot)
    backward = recorder.halves.get("backward")
    metadata = recorder.metadata
    if backward is None or metadata is None:
        raise UnsupportedError("AOTAutograd traced a forward graph but no backward graph for it")
    return Joint(forward, backward, _signature(metadata, forward, backward, example_inputs), None)


def _signature(meta: ViewAndMutationMeta, forward: Half, backward: Half, inputs: Sequence[Any]) -> RegionSignature:
    _refuse_what_the_node_cannot_do(meta, forward, inputs)
    mutated = tuple(meta.mutated_inp_runtime_indices)
    num_integers = meta.num_symints_saved_for_bw or 0
    num_leading = len(mutated) + len(meta.output_info)
    num_saved = _num_outputs(forward.graph) - num_leading - num_integers
    requires_grad = tuple(
        bool(info.requires_grad and info.output_type in _NO_ALIAS and issubclass(info.raw_type, torch.Tensor))
        for info in meta.output_info
    )
    num_tangents = len(backward.example_inputs) - num_integers - num_saved
    if num_tangents != sum(requires_grad):
        raise UnsupportedError(
            f"the backward graph takes {num_tangents} gradients where the forward graph has {sum(requires_grad)} "
            "differentiable outputs"
        )
    return RegionSignature(
        num_inputs=len(inputs),
        mutated_inputs=mutated,
        mutated_by_code=tuple(meta.mutated_graph_handled_indices_seen_by_autograd),
        outputs_as_inputs=_outputs_of_type(meta, OutputType.is_input),
        output_views=_output_views(meta, forward, inputs),
        output_requires_grad=requires_grad,
        num_saved_tensors=num_saved,
        overwritten_saved=tuple(index - num_integers for index in meta.bw_donated_idxs or ()),
        num_saved_integers=num_integers,
        input_requires_grad=tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs),
        gradient_sources=_gradient_sources(backward.graph, num_tangents),
    )


def _gradient_sources(backward: fx.GraphModule, num_tangents: int) -> tuple[tuple[int, ...], ...]:
    placeholders = backward.graph.find_nodes(op="placeholder")
    number = {node: index for index, node in enumerate(placeholders[len(placeholders) - num_tangents :])}
    sources: dict[fx.Node, set[int]] = {}
    for node in backward.graph.nodes:
        own = {number[node]} if node in number else set()
        sources[node] = own.union(*(sources[source] for source in node.all_input_nodes))
    gradients = outputs_of(backward.graph)
    return tuple(tuple(sorted(sources[g])) if isinstance(g, fx.Node) else () for g in gradients)


def _refuse_what_the_node_cannot_do(meta: ViewAndMutationMeta, forward: Half, inputs: Sequence[Any]) -> None:
    if len(forward.example_inputs) != len(inputs):
        raise UnsupportedError("two inputs of the region are the same tensor or share storage")
    if meta.num_intermediate_bases or any(info.output_type not in _EXPRESSIBLE for info in meta.output_info):
        raise UnsupportedError("an output of the region aliases another output")
    for index, info in enumerate(meta.input_info):
        if info.mutates_metadata or info.mutates_storage_metadata:
            raise UnsupportedError(f"input {index} of the region changes its shape or storage in place")
        if info.mutates_data and info.requires_grad and index in meta.mutated_inp_runtime_indices:
            raise UnsupportedError(f"input {index} of the region requires grad and is changed in place")
    if meta.tokens or meta.num_opaque_objects_saved_for_bw:
        raise UnsupportedError("the region has ordered side effects")
    if any(_is_subclass(value) for value in inputs):
        raise UnsupportedError("an input of the region is a tensor subclass")


def _outputs_of_type(meta: ViewAndMutationMeta, kind: OutputType) -> dict[int, int]:
    """Returns {user output of this kind: the input from which it comes}."""
    return {
        index: info.base_idx
        for index, info in enumerate(meta.output_info)
        if info.output_type is kind and info.base_idx is not None
    }


def _output_views(meta: ViewAndMutationMeta, forward: Half, inputs: Sequence[Any]) -> dict[int, int]:
    views = _outputs_of_type(meta, OutputType.alias_of_input)
    results = outputs_of(forward.graph.graph)
    for output, base in views.items():
        view = results[len(meta.mutated_inp_runtime_indices) + output].meta["val"]
        if meta.input_info[base].mutates_data:
            raise UnsupportedError(f"output {output} of the region is a view of input {base}, which changes in place")
        if view.dtype != inputs[base].dtype or view.is_conj() or view.is_neg():
            raise UnsupportedError(f"output {output} of the region views input {base} as another type")
        if inputs[base].requires_grad and not meta.output_info[output].requires_grad:
            raise UnsupportedError(f"output {output} of the region is a detached view of input {base}")
    return views


def _is_subclass(value: object) -> bool:
    plain = (torch.Tensor, torch.nn.Parameter, FakeTensor, torch.nn.Buffer)
    return isinstance(value, torch.Tensor) and type(value) not in plain


def _num_outputs(graph: fx.GraphModule) -> int:
    (outputs,) = graph.graph.output_node().args
    assert isinstance(outputs, (list, tuple))
    return len(outputs)
