# SPDX-License-Identifier: Apache-2.0
"""`native`: agspeed's own compiler, for the CPU or one GPU. It makes fused kernels for element-wise chains and
reductions, and calls ATen for all other operators. `native-channels-last` is the same with another layout of images.

AOTAutograd traces and partitions the graph. The C++ compiler receives both halves as GraphSpec and returns one
Executable with two entries. A C++ autograd node runs it, without Python inside a direction. Random operators run as
ATen calls in eager's order and draw from torch's default generator, so they draw the same numbers as eager.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import fx

from agspeed import native
from agspeed.backends import native_dump, perf_map
from agspeed.backends.aot import run_by_aten
from agspeed.backends.base import Candidate, CompileOptions, Runner, to_end
from agspeed.backends.channels_last import arrange, may_gain
from agspeed.backends.checkpointing import as_plain_calls
from agspeed.backends.joint import BoxedRunner, trace
from agspeed.backends.native_listing import listing
from agspeed.backends.numerics.kept_nan import LOSSES, keeping_nan
from agspeed.backends.numerics.padded_nan import spreading_nan
from agspeed.backends.numerics.statistics_types import declare_statistics
from agspeed.backends.numerics.wide_products import widen_products
from agspeed.backends.region import make_region, make_runner
from agspeed.backends.stages import inputs_in_memory_of
from agspeed.devices.placement import home_of, tensors_in
from agspeed.errors import UnsupportedError
from agspeed.graph_spec.export import GraphSpec, export
from agspeed.torch_compat.aot_autograd import mark_boxed, min_cut_rematerialization_partition
from agspeed.torch_compat.operators import get_decompositions, whole_resampling

_aten = torch.ops.aten
_DECOMPOSED = (
    _aten.binary_cross_entropy,
    _aten.binary_cross_entropy_backward,
    _aten.binary_cross_entropy_with_logits,
    _aten.huber_loss,
    _aten.huber_loss_backward,
    _aten.l1_loss,
    _aten.mse_loss,
    _aten.mse_loss_backward,
    _aten.native_dropout_backward,
    _aten.native_group_norm,
    _aten.native_group_norm_backward,
    _aten.smooth_l1_loss,
)
"""Operators that are decomposed before compilation, because their parts fuse with neighbouring operators."""


class Native(Candidate):
    """Runs MLIR/LLVM kernels and ATen calls in one Program per direction."""

    name = "native"
    in_process = True

    def unavailable(self) -> str | None:
        module = native.load()
        if module is None:
            return native.why_missing()
        return None if hasattr(module, "compile") else "the native extension was built without the compiler"

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        return to_end(self.compile_in_parts(gm, example_inputs, options))

    def compile_in_parts(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
    ) -> Generator[None, None, Runner]:
        with whole_resampling():
            joint = trace(
                gm,
                example_inputs,
                compiler=run_by_aten,
                inference_compiler=lambda graph, inputs: self._compile_forward(graph, options),
                partition_fn=self._partition,
                decompositions=_decompositions(),
            )
        if joint.forward is None or joint.backward is None:
            return make_runner(joint, gm)
        as_plain_calls(joint.forward.graph)
        as_plain_calls(joint.backward.graph)
        yield
        memory = inputs_in_memory_of(joint) if options.stage_bytes else []
        executable = _compile({"forward": joint.forward.graph, "backward": joint.backward.graph}, options, memory)
        failures = _Failures()
        stages = executable.stages("backward")
        region = make_region(executable, joint, gm, gradient_stages=stages, on_failure=failures.tell)
        return _NativeRunner(region, executable, failures, 1 + max(stages, default=0))

    def fingerprint(self) -> dict[str, str]:
        module = native.load()
        return {key: str(value) for key, value in module.build_info().items()} if module is not None else {}

    def _compile_forward(self, graph: fx.GraphModule, options: CompileOptions) -> BoxedRunner:
        declare_statistics(graph)
        self.arrange(graph)
        return _boxed(_compile({"forward": graph}, options), "forward")

    def _partition(self, graph: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        declare_statistics(graph)
        self.arrange(graph)
        return min_cut_rematerialization_partition(graph, inputs, **options)

    def arrange(self, graph: fx.GraphModule) -> None:
        """Changes the layouts in the ATen graph of both directions, before it is partitioned; a subclass may override
        this. Raises: UnsupportedError with the reason."""


class NativeChannelsLast(Native):
    """`native` with channels-last images between convolutions. Convolutions with large filters may be faster then, and
    other work slower, so timing decides."""

    name = "native-channels-last"
    devices = ("cpu",)

    def skip_reason(self, gm: fx.GraphModule, options: CompileOptions) -> str | None:
        return None if may_gain(gm) else "it has no convolutions for which the layout matters"

    def arrange(self, graph: fx.GraphModule) -> None:
        arrange(graph)


class _Failures:
    """Passes failures of an Executable to the listener, if there is one. Any thread."""

    def __init__(self) -> None:
        self.listener: Callable[[Exception], None] | None = None

    def tell(self, reason: str) -> None:
        if self.listener is not None:
            self.listener(RuntimeError(reason.partition("\n")[0]))  # Python kernels append their stack to the reason


class _NativeRunner:
    """A native region as a Runner. `direct` is the C++ callable itself, which falls back to eager on its own."""

    def __init__(self, region: Any, executable: Any, failures: _Failures, num_stages: int) -> None:
        self.direct, self._failures, self.num_stages = region, failures, num_stages
        self._executable = executable
        stats = executable.stats()
        self.native_operators = stats.get("compiled_operators", 0)
        self.num_operators = self.native_operators + stats.get("external_operators", 0)
        self.num_kernels, self.num_cached_kernels = stats.get("kernels", 0), stats.get("cache_hits", 0)

    def __call__(self, *args: Any) -> Sequence[Any]:
        result: Sequence[Any] = self.direct(*args)
        return result

    @property
    def generated(self) -> str:
        """The instructions and the kernels as text, for reports."""
        return listing(self._executable, ("forward", "backward"))

    def watch(self, on_failure: Callable[[Exception], None]) -> None:
        """Calls `on_failure`, on the thread that runs the region, for forwards that failed and that eager computed
        instead, and for backwards whose exception reaches the user."""
        self._failures.listener = on_failure


def _compile(
    graphs: dict[str, fx.GraphModule], options: CompileOptions, inputs_in_memory_of: Sequence[list[int]] = ()
) -> Any:
    for graph in graphs.values():
        widen_products(graph)
    specs = {name: export(graph, lift_constants=True) for name, graph in graphs.items()}
    cache_dir = os.path.join(options.cache_dir, "kernels") if options.cache_dir else ""
    module = native.load()
    if module is None:
        raise UnsupportedError(native.why_missing())
    texts = {name: spec.to_json() for name, spec in specs.items()}
    executable = module.compile(
        texts,
        {
            "device": str(_home(graphs)),
            "cache_dir": cache_dir,
            "dump_dir": native_dump.begin(options.dump_dir, graphs, texts),
            "stage_bytes": options.stage_bytes,
            "inputs_in_memory_of": list(inputs_in_memory_of),
        },
        {name: _constants(spec, graphs[name]) for name, spec in specs.items()},
    )
    if options.perf_map:
        perf_map.add(executable.kernels())
    return executable


def _constants(spec: GraphSpec, graph: fx.GraphModule) -> list[torch.Tensor]:
    """Returns the tensors for the inputs that `spec` has in addition to the graph's own."""
    num_own = len(graph.graph.find_nodes(op="placeholder"))
    return [spec.tensors[node["target"]] for node in spec.inputs[num_own:]]


def _home(graphs: dict[str, fx.GraphModule]) -> torch.device:
    """Returns the device on which all directions compute."""
    nodes = [node for graph in graphs.values() for node in graph.graph.nodes]
    return home_of(tensors_in([node.meta.get("val") for node in nodes]))


def _decompositions() -> dict[Any, Any]:
    return {**get_decompositions(_DECOMPOSED), **keeping_nan(LOSSES), **spreading_nan()}


def _boxed(executable: Any, entry: str) -> BoxedRunner:
    def run(args: list[Any]) -> Sequence[Any]:
        inputs = list(args)
        args.clear()
        result: Sequence[Any] = executable.run(entry, inputs)
        return result

    mark_boxed(run)
    return run
