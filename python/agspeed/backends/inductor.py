# SPDX-License-Identifier: Apache-2.0
"""`inductor` and `inductor-max-autotune`: TorchInductor's kernels behind agspeed's autograd node.

Differences from ``torch.compile``'s default, each scoped to the compile:
- ``fallback_random``: dropout draws the same numbers as eager, so results can be compared and reproduced;
- masks of dropout are drawn faster, and the rest of dropout fuses (`agspeed.backends.fast_masks`);
- the number of threads is part of the code's cache key (Inductor's own cache ignores it);
- calls with indices that eager refuses run eagerly (`agspeed.backends.index_bounds`);
- the generated code is called without Inductor's wrapper if the wrapper does nothing;
- both directions are compiled at once, see `agspeed.backends.joint`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import fx

from agspeed.backends import vector_isa
from agspeed.backends.aot import run_by_aten
from agspeed.backends.base import Candidate, CompileOptions, Runner, to_end
from agspeed.backends.fast_masks import draw_fast, mask_operator
from agspeed.backends.index_bounds import bounds_of
from agspeed.backends.joint import (
    BoxedRunner,
    Half,
    Joint,
    Recorder,
    aot_settings,
    finish,
    new_context,
    refuse_gradients_of_its_own,
)
from agspeed.backends.numerics.kept_nan import ACTIVATIONS, LOSSES, keeping_nan
from agspeed.backends.region import PairRunner, make_runner
from agspeed.backends.stages import Stages, cut
from agspeed.devices.placement import home_of, tensors_in
from agspeed.errors import UnsupportedError
from agspeed.torch_compat import compiler_cache, inductor, operators, probe
from agspeed.torch_compat.aot_autograd import mark_boxed
from agspeed.torch_compat.operators import run_and_save_rng_state, run_with_rng_state
from agspeed.torch_compat.shapes import TracingContext

_MAX_PARTS = 8
"""The most parts of a staged backward: operators are not fused across parts."""
_DRAWN_AGAIN = (run_and_save_rng_state, run_with_rng_state)
"""What AOTAutograd wraps around random operators of checkpointed parts."""


class Inductor(Candidate):
    """TorchInductor with its default options."""

    name = "inductor"
    same_without_choices: ClassVar[tuple[str, ...]] = ("inductor-max-autotune",)
    """Candidates that generate the same code for graphs without a choice of implementations (`has_choices`)."""
    _extra_config: ClassVar[dict[str, Any]] = {}

    def unavailable(self) -> str | None:
        return probe.misfit(("inductor",)) or _compiler_missing()

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        return to_end(self.compile_in_parts(gm, example_inputs, options))

    def compile_in_parts(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
    ) -> Generator[None, None, Runner]:
        with compiler_cache.using(options.cache_dir):
            inductor.load()  # takes seconds the first time
        yield
        bounds = bounds_of(gm)
        if inductor.has_broken_pool_gradients():
            pool_by_mean(gm)
        work = _Compile(self.config(options) | _rounding(example_inputs), example_inputs, options.cache_dir)
        joint = work.trace(gm, example_inputs)
        if joint.backward is not None:
            yield
        stages, runs = yield from self._compile_backward(joint, options, work)
        runner = make_runner(self.finished(joint), gm, stages, runs)
        runner.keep_within(bounds, gm.forward)
        on_cpu = home_of(tensors_in(list(example_inputs))).type == "cpu"
        if on_cpu and not any(has_choices(half.graph) for half in work.recorder.halves.values()):
            runner.twins = self.same_without_choices
        return with_digest(runner, work.sources)

    def finished(self, joint: Joint) -> Joint:
        """Transforms the compiled halves; a subclass may override this."""
        return joint

    def _compile_backward(
        self, joint: Joint, options: CompileOptions, work: _Compile
    ) -> Generator[None, None, tuple[Stages | None, list[BoxedRunner]]]:
        """Compiles the backward. Returns: how it is cut, and the code of each part; (None, []) if it is not cut, in
        which case `joint` has the code.
        """
        yield from ()
        if joint.backward is not None:
            joint.backward.run = work.compile_backward(joint.backward)
        return None, []

    def config(self, options: CompileOptions) -> dict[str, Any]:
        """Returns Inductor's options for one compile. A child process must use the same ones to fill the same cache
        entries."""
        own = {"fallback_random": True, "cpp.threads": options.num_threads}
        return own | inductor.collectives_in_place() | self._extra_config

    def fingerprint(self) -> dict[str, str]:
        return {"torch": torch.__version__}


def _rounding(example_inputs: Sequence[Any]) -> dict[str, Any]:
    """Returns Inductor options that round each result if float16 is in use. Otherwise Inductor computes a chain of
    16-bit operators in float32, which hides overflows that GradScaler needs to see."""
    home = home_of(tensors_in(list(example_inputs))).type
    is_autocast = torch.is_autocast_enabled(home) and torch.get_autocast_dtype(home) == torch.float16
    if is_autocast or any(tensor.dtype == torch.float16 for tensor in tensors_in(list(example_inputs))):
        return {"emulate_precision_casts": True}
    return {}


class InductorStaged(Inductor):
    """TorchInductor with a backward in parts; gradients leave after each part. Operators are not fused across parts, so
    timing decides whether sending gradients earlier is worth the loss of fusion."""

    name = "inductor-staged"
    needs_stages = True
    same_without_choices = ()

    def skip_reason(self, gm: fx.GraphModule, options: CompileOptions) -> str | None:
        return None if options.stage_bytes else "gradients are not used before the backward has ended"

    def _compile_backward(
        self, joint: Joint, options: CompileOptions, work: _Compile
    ) -> Generator[None, None, tuple[Stages | None, list[BoxedRunner]]]:
        stages = cut(joint, options.stage_bytes, _MAX_PARTS) if joint.backward is not None else None
        if stages is None:
            raise UnsupportedError("its backward is no more than one stage, which inductor compiles")
        assert joint.backward is not None
        placeholders = joint.backward.graph.graph.find_nodes(op="placeholder")
        known = {node.name: value for node, value in zip(placeholders, joint.backward.example_inputs, strict=True)}
        runs: list[BoxedRunner] = []
        for part in stages.parts:
            if runs:
                yield
            output = part.graph.graph.output_node()
            output.meta["user_visible_output_idxs"] = list(
                range(part.num_gradients + len(part.carried))
            )  # keep strides
            runs.append(work.compile_stage(part.graph, [known[name] for name in part.inputs]))
            results: Any = part.graph.graph.output_node().args[0]
            known |= {name: results[part.num_gradients + at].meta["val"] for at, name in enumerate(part.carried)}
        return stages, runs


class _Compile:
    """One compile of a region, in parts that share AOTAutograd's results. No setting stays changed between parts."""

    def __init__(self, config: dict[str, Any], example_inputs: Sequence[Any], cache_dir: str) -> None:
        self.recorder = Recorder()
        self.sources: list[str] = []
        """The generated code so far; "" if Inductor does not give it."""
        self._config, self._context, self._cache_dir = config, new_context(example_inputs), cache_dir
        self._layout: dict[str, Any] = {}
        self._backward_keywords: dict[str, Any] = {}

    def trace(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Joint:
        """Traces both directions and compiles the forward. Raises: UnsupportedError with the reason."""

        refuse_gradients_of_its_own(gm)

        def compile_unless_backward(graph: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
            role = _role(keywords)
            if role == "backward":
                self._backward_keywords = keywords
                return self.recorder.record(role, graph, inputs, run_by_aten(graph, inputs))
            run = self._compile(graph, inputs, keywords)
            return self.recorder.record(role, graph, inputs, _boxed(run) if role == "inference" else run)

        with self._settings():
            from_aot: Any = inductor.compile_both(
                gm, example_inputs, compile_unless_backward, keeping_nan((*ACTIVATIONS, *LOSSES))
            )
            return finish(self.recorder, from_aot, example_inputs)

    def compile_backward(self, backward: Half) -> BoxedRunner:
        with self._settings():
            return self._compile(backward.graph, backward.example_inputs, self._backward_keywords)

    def compile_stage(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> BoxedRunner:
        """Compiles a part of the backward."""
        with self._settings(), _without_donations():
            return self._compile(graph, inputs, {"is_backward": True})

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        from agspeed.backends import draw_order

        patch = inductor.settings(self._config | draw_order.settings())
        cache = inductor.keeping_code_below(self._cache_dir)
        with cache, aot_settings(self._context), patch, vector_isa.remembering():
            yield

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[Any], keywords: dict[str, Any]) -> BoxedRunner:
        draw_fast(graph)
        if _draws_for_feature_maps(graph):
            self._layout["layout_optimization"] = False  # also for the backward
        with inductor.settings(self._layout):
            compiled = inductor.compile_graph(graph, inputs, **keywords)
        self.sources.append(getattr(compiled, "source_code", ""))
        run: BoxedRunner = _without_wrapper(compiled)
        return run


@contextlib.contextmanager
def _without_donations() -> Iterator[None]:
    """Prevents Inductor from overwriting inputs inside the block: the indices of inputs that it may overwrite refer to
    the whole backward."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        yield
        return
    donated, metadata.bw_donated_idxs = metadata.bw_donated_idxs, None
    try:
        yield
    finally:
        metadata.bw_donated_idxs = donated


class InductorMaxAutotune(Inductor):
    """TorchInductor with matrix-product templates timed at compile time."""

    name = "inductor-max-autotune"
    same_without_choices = ("inductor",)
    _extra_config: ClassVar[dict[str, Any]] = {"max_autotune": True, "coordinate_descent_tuning": True}


def has_choices(graph: fx.GraphModule) -> bool:
    """Returns whether max-autotune may choose between implementations of any operator of an ATen graph on the CPU.

    It has alternatives for matrix products with a bias or in batches, for sums of two products and for 1x1
    convolutions. Plain products have alternatives only if a factor is a constant, which no tensor of a region is.
    """
    return any(node.op == "call_function" and _has_alternatives(node) for node in graph.graph.nodes)


def _has_alternatives(node: fx.Node) -> bool:
    aten = torch.ops.aten
    if node.target is aten.add.Tensor:
        return all(getattr(arg, "target", None) is aten.mm.default for arg in node.args[:2])
    if node.target is aten.convolution.default:
        weight = node.args[1]
        return not isinstance(weight, fx.Node) or all(size == 1 for size in weight.meta["val"].shape[2:])
    return node.target in (aten.addmm.default, aten.baddbmm.default, aten.bmm.default, aten._int_mm.default)


def _draws_for_feature_maps(graph: fx.GraphModule) -> bool:
    """Returns whether an ATen graph draws random numbers for tensors that Inductor may turn to channels-last. Their
    elements are then in another order, and each number would go to another element than in eager.
    """
    for node in graph.graph.nodes:
        if node.op == "call_function" and _draws(node.target):
            values = [node.meta.get("val")]
            if node.target in _DRAWN_AGAIN:  # AOTAutograd leaves them without a value; they draw for what they read
                values += [source.meta.get("val") for source in node.all_input_nodes]
            drawn = list(tensors_in(values))
            if not drawn or any(map(_may_be_reordered, drawn)):
                return True
    return False


def _draws(target: Any) -> bool:
    """Returns whether an operator gives random numbers to elements in their order in memory."""
    # Masks are drawn by index. Fused attention of ATen refuses dropout on CPUs.
    if target is mask_operator() or str(target).startswith("aten._scaled_dot_product"):
        return False
    return target in _DRAWN_AGAIN or torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _may_be_reordered(drawn: torch.Tensor) -> bool:
    """Returns False for one number per image or per channel, as in stochastic depth and channel dropout; else True."""
    _, channels, *image = drawn.shape if drawn.ndim >= 4 else (1, 1)
    return _may_exceed_one(channels) and any(map(_may_exceed_one, image))


def _may_exceed_one(size: Any) -> bool:
    return not isinstance(size, int) or size > 1


def pool_by_mean(gm: fx.GraphModule) -> None:
    """Replaces average pooling of whole feature maps by the equivalent mean, see `has_broken_pool_gradients`.

    Torch sets the strides of the pooled result of channels-last maps with as_strided. Inductor's code reads the
    gradient of that before it has written it: the gradients are then zeros, or the code does not run.
    """
    pools = operators.pools()
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in pools and _pools_all(node):
            node.target, node.args, node.kwargs = torch.mean, (node.args[0], (-2, -1)), {"keepdim": True}
    gm.recompile()


def _pools_all(node: fx.Node) -> bool:
    size = node.args[1] if len(node.args) > 1 else node.kwargs.get("output_size")
    return bool(node.args) and size in (1, (1, 1), [1, 1])


def with_digest(runner: PairRunner, sources: Sequence[str]) -> PairRunner:
    """Stores the generated code and its digest without comments. Candidates with equal digests are timed once."""
    if all(sources):
        code = [line for source in sources for line in source.splitlines() if not line.lstrip().startswith("#")]
        runner.generated = "\n".join(sources)
        runner.code_digest = hashlib.sha256("\n".join(code).encode()).hexdigest()
    return runner


def _without_wrapper(compiled: Any) -> Any:
    """Returns the generated code's entry on the CPU: Inductor's wrapper around it (autotuning, metrics, CUDA graphs) is
    useful only on GPUs."""
    on_cpu = getattr(compiled, "device_types", None) == {"cpu"}
    return compiled.current_callable if on_cpu else compiled


def _boxed(run: BoxedRunner) -> BoxedRunner:
    """Returns `run`, marked as taking its arguments in a list, for AOTAutograd's calls of graphs without a backward."""

    def run_boxed(args: list[Any]) -> Sequence[Any]:
        return run(args)

    mark_boxed(run_boxed)
    return run_boxed


def _role(keywords: dict[str, Any]) -> str:
    if keywords.get("is_backward"):
        return "backward"
    return "inference" if keywords.get("is_inference") else "forward"


@functools.cache
def _compiler_missing() -> str | None:
    names = inductor.compilers()
    if any(shutil.which(name) for name in names):
        return None
    return f"no C++ compiler ({', '.join(names)}) is on PATH: install g++ to let Inductor generate CPU code"
