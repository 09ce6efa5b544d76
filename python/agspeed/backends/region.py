# SPDX-License-Identifier: Apache-2.0
"""Runs a `Joint` as one differentiable function, behind the C++ autograd node (`agspeed._native.Region`).

AOTAutograd's own wrappers refuse a double backward only after the forward has run. They cannot retain a graph whose
saved tensors are donated, and they cost several Python calls. The C++ node copies saved tensors that the code would
overwrite. If a graph of the gradients is requested, it replays the captured graph eagerly on the saved inputs, with the
forward's random state, and autograd differentiates the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from agspeed import native
from agspeed.backends.base import Runner
from agspeed.backends.index_bounds import Bound, is_within
from agspeed.backends.joint import BoxedRunner, Joint
from agspeed.backends.stages import Stages
from agspeed.devices.failures import is_from_signal_handler, is_sticky
from agspeed.errors import UnsupportedError
from agspeed.log import warn_once
from agspeed.torch_compat.operators import run_and_save_rng_state

if TYPE_CHECKING:
    from agspeed import _native

_RANDOM_TAG = torch.Tag.nondeterministic_seeded


def make_runner(
    joint: Joint, gm: fx.GraphModule, stages: Stages | None = None, runs: Sequence[BoxedRunner] = ()
) -> PairRunner:
    """Returns a differentiable callable that takes the flat arguments of `gm` and runs both compiled halves.

    Args:
        joint: both compiled halves, or only AOTAutograd's callable.
        gm: the captured graph, which is replayed eagerly for a double backward. Not changed.
        stages: how the backward is cut, with one of `runs` for each part; None: it is not cut.
    """
    if joint.inference is not None:
        return PairRunner(joint.inference)
    assert joint.forward is not None and joint.backward is not None
    layouts = [_dims_by_stride(tangent) for tangent in joint.tangents()]
    failures = BackwardFailures()
    backward = tuple(failures.guarded(run) for run in (runs if stages is not None else [joint.backward.run]))
    region = make_region(
        (joint.forward.run, backward),
        joint,
        gm,
        tangent_layouts=layouts,
        overwrites_saved=True,
        gradient_stages=stages.gradient_stages if stages is not None else (),
        saved_stages=stages.saved_stages if stages is not None else (),
        is_final=failures.take_final,
    )
    return PairRunner(region, failures, len(backward))


class PairRunner:
    """A pair of compiled halves as a Runner. Two candidates with the same `code_digest` have generated the same code.
    `twins` names candidates that are known to generate the same code. `num_stages` counts the stages of the backward.
    `generated` is the generated code, or "" if it is not available.
    """

    def __init__(self, region: Runner, failures: BackwardFailures | None = None, num_stages: int = 1) -> None:
        self._region, self._failures, self.num_stages = region, failures, num_stages
        self.code_digest: str | None = None
        self.twins: tuple[str, ...] = ()
        self.generated = ""

    def __call__(self, *args: Any) -> Sequence[Any]:
        return self._region(*args)

    def keep_within(self, bounds: Sequence[Bound], eager: Runner) -> None:
        """Runs calls whose indices violate `bounds` with `eager`, which raises unless it accepts them."""
        region = self._region

        def run(*args: Any) -> Sequence[Any]:
            if is_within(bounds, args):
                return region(*args)
            outputs = eager(*args)
            warn_once(
                ("indices", id(region)),
                "calls with negative indices run eagerly: the compiled code would read from the end of a table",
            )
            return outputs

        if bounds:
            self._region = run

    def watch(self, on_failure: Callable[[Exception], None]) -> None:
        """Calls `on_failure`, on the thread that runs the region, for each exception of the compiled backward."""
        if self._failures is not None:
            self._failures.on_failure = on_failure


class BackwardFailures:
    """Reports exceptions of a compiled backward. The autograd node then runs eager instead, if that is possible.

    The exception propagates if `on_failure` is not set (in the gate and in the child) or if `on_failure` raises.
    """

    def __init__(self) -> None:
        self.on_failure: Callable[[Exception], None] | None = None
        self._is_final = False

    def guarded(self, run: BoxedRunner) -> BoxedRunner:
        """Returns `run` with its exceptions reported."""

        def guarded(inputs: list[Any]) -> Sequence[Any]:
            try:
                return run(inputs)
            except Exception as error:
                if is_from_signal_handler(error):
                    self._is_final = True
                    raise
                error.add_note(
                    "agspeed: raised by the compiled backward of a region whose inputs have changed since, so that "
                    "eager could not stand in. The gradients of this step are incomplete; the region runs eagerly from "
                    "now on"
                )
                self._tell(error)
                self._is_final |= is_sticky(error)  # eager cannot run either if the GPU is lost
                raise

        return guarded

    def _tell(self, error: Exception) -> None:
        self._is_final = True
        if self.on_failure is not None:
            self.on_failure(error)
            self._is_final = False

    def take_final(self) -> bool:
        """Returns True once after an exception that must propagate."""
        was, self._is_final = self._is_final, False
        return was


def make_region(
    code: Any,
    joint: Joint,
    gm: fx.GraphModule,
    *,
    tangent_layouts: Sequence[list[int]] = (),
    overwrites_saved: bool = False,
    gradient_stages: Sequence[int] = (),
    saved_stages: Sequence[int] = (),
    is_final: Callable[[], bool] = lambda: False,
    on_failure: Callable[[str], None] | None = None,
) -> Runner:
    """Makes a `_native.Region`.

    Args:
        code: an Executable with both entries, or a boxed callable and a tuple of them, one for each backward stage.
        joint: provides the signature, and the forward graph, which shows whether random numbers are drawn.
        gm: the captured graph, for the fallback to eager and for replays. Not changed.
        tangent_layouts, gradient_stages, saved_stages: as in runtime/autograd/region_signature.h.
        overwrites_saved: the backward may write into donated saved tensors.
        is_final: returns whether the backward's latest exception must propagate instead of causing a replay.
        on_failure: as in python/csrc/region_dict.h; also called if the eager fallback of a forward finds the GPU lost.
    """
    module = native.load()
    if module is None:
        raise UnsupportedError(native.why_missing())
    assert joint.forward is not None and joint.signature is not None
    signature = joint.signature
    mutated = {*signature.mutated_inputs, *signature.mutated_by_code}
    run: Runner = gm.forward

    def fallback(*inputs: Any) -> Sequence[Any]:
        try:
            return run(*inputs)
        except Exception as error:
            if on_failure is not None and is_sticky(error):  # the compiled code has lost the GPU
                on_failure(str(error))
            raise

    def replay(*inputs: Any) -> Sequence[Any]:
        if is_final():
            raise RuntimeError("the exception of the backward shall pass")
        return run(*[value.clone() if index in mutated else value for index, value in enumerate(inputs)])

    described: _native.RegionSignature = {
        "name": "compiled region",
        "requires_grad": list(signature.input_requires_grad),
        "num_outputs": signature.num_outputs,
        "mutated_inputs": list(signature.mutated_inputs),
        "mutated_by_code": list(signature.mutated_by_code),
        "outputs_as_inputs": dict(signature.outputs_as_inputs),
        "output_views": dict(signature.output_views),
        "tangents": [index for index, needed in enumerate(signature.output_requires_grad) if needed],
        "tangent_layouts": list(tangent_layouts),
        "gradient_sources": [list(tangents) for tangents in signature.gradient_sources],
        "num_saved_tensors": signature.num_saved_tensors,
        "num_saved_symints": signature.num_saved_integers,
        "overwritten_saved": list(signature.overwritten_saved) if overwrites_saved else [],
        "gradient_stages": list(gradient_stages),
        "saved_stages": list(saved_stages),
        "draws_random_numbers": _draws_random_numbers(joint.forward.graph),
        "fallback": fallback,
        "replay": replay,
    }
    if on_failure is not None:
        described["on_failure"] = on_failure
    region: Runner = module.Region(code, described)
    return region


def _draws_random_numbers(graph: fx.GraphModule) -> bool:
    """Returns whether an ATen graph contains an operator that draws random numbers."""
    return any(
        node.target is run_and_save_rng_state or _RANDOM_TAG in getattr(node.target, "tags", ())
        for node in graph.graph.nodes
    )


def _dims_by_stride(tensor: Any) -> list[int]:
    """Returns the dimensions from the outermost in memory to the innermost: [0, 2, 3, 1] for channels-last NCHW."""
    strides = [_hint(stride) for stride in tensor.stride()]
    return sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim))


def _hint(size: Any) -> int:
    hint: Any = size.node.hint if isinstance(size, torch.SymInt) else size
    return int(hint)
