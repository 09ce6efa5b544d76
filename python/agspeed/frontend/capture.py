# SPDX-License-Identifier: Apache-2.0
"""Captures with Dynamo: turns a callable into one that runs captured regions. Failed captures never break training.

After an exception during tracing or compiling, the frame runs eagerly; an exception of the user's own code then comes
from that code. Dynamo's configuration is patched only while a frame is being converted, so other uses of
``torch.compile`` in the process are not affected. What Dynamo learns from one captured callable does not apply to
another (`dynamo_identity.py`). Recurrent layers run uncaptured, between the regions before and after them.

Threads: conversion happens under Dynamo's compile lock on the thread that calls the model.
"""

from __future__ import annotations

import builtins
import inspect
import re
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from agspeed.backends.joint import fake_inputs
from agspeed.errors import UnsupportedError
from agspeed.frontend.dynamo_identity import DynamoIdentity, GuardFailure, this_call_alone
from agspeed.frontend.graphs.float_inputs import pass_floats_as_tensors, shapes_being_traced
from agspeed.frontend.graphs.linked_outputs import cut
from agspeed.frontend.shadow.comparison import Comparison
from agspeed.frontend.target import UserCall
from agspeed.frontend.weak_calls import weakly
from agspeed.log import logger
from agspeed.regions.user_lines import PACKAGE, graph_location, is_installed, is_users
from agspeed.torch_compat import dynamo, log_messages, wrong_captures
from agspeed.torch_compat.autograd import start_engine
from agspeed.torch_compat.dynamo import (
    TORCH_DYNAMO_RESUME_IN_PREFIX,
    ConvertFrameReturn,
    FrameAction,
    FrameExecStrategy,
    SkipFrame,
)
from agspeed.torch_compat.shapes import FakeTensorMode, ShapeEnv, forget_floats, forget_originals, mode_of
from agspeed.tuning.interrupted import deferred_signals

RegionFactory = Callable[[fx.GraphModule], UserCall]
"""Takes a captured graph and returns the callable that Dynamo's generated code calls."""

_SETTINGS: dict[str, Any] = {
    "suppress_errors": True,  # a frame that cannot be traced runs eagerly
    "skip_fsdp_guards": False,  # flags and parameters of a sharded module are guarded like any other module's
    "skip_nnmodule_hook_guards": False,  # guards notice a hook that is added later
    "specialize_float": False,  # see `graphs/float_inputs.py`
    "allow_rnn": True,  # else a frame runs eagerly from the first mention of a recurrent layer on
    "automatic_dynamic_local_pgo": False,  # neither read nor write the sizes that a job has stored
    "automatic_dynamic_remote_pgo": False,
    "optimize_ddp": False,  # no cuts at bucket boundaries: a region's backward returns its gradients in stages
}
_LEFT_OUT: tuple[Any, ...] = (
    torch.nn.RNN.forward,
    torch.nn.GRU.forward,
    torch.nn.LSTM.forward,
    torch.nn.utils.rnn.pack_padded_sequence,
    torch.nn.utils.rnn.pad_packed_sequence,
)
"""Recurrent layers and the functions that pack sequences for them. Their own code is fast; a graph of it unrolls every
time step."""


_HARMLESS_BREAKS = ("Data-dependent branching", "generic_jump", "Unsupported Tensor.item() call", "Tensor.item")
"""Prefixes of Dynamo's reasons for graph breaks at which only a decision between graphs runs as Python."""


@dataclass(frozen=True)
class CaptureEvent:
    """An event for the report: a graph break, a recompile, or a frame that runs eagerly."""

    kind: str  # "graph-break", "recompile" or "skipped"
    reason: str
    where: str  # "file.py:12", or "" when unknown


class Capture:
    """One captured callable.

    Args:
        function: the user's callable; it runs unchanged if a frame cannot be captured.
        make_region: see `RegionFactory`; runs inside Dynamo's tracing context.
        on_event: called with each graph break, recompile and skipped frame.
        dynamic: as for ``torch.compile``.
        comparison: decides whether frames may be captured now. Receives reports about captured code that must not run
            a second time beside the user's own code.
    """

    def __init__(
        self,
        function: UserCall,
        make_region: RegionFactory,
        on_event: Callable[[CaptureEvent], None],
        dynamic: bool | None,
        comparison: Comparison,
    ) -> None:
        start_engine()
        self._make_region = make_region
        self._comparison = comparison
        self._on_event = on_event
        backend = weakly(self._backend)
        context: Any = dynamo.new_context(backend, dynamic, weakly(self._on_guard_failure))
        identity = DynamoIdentity(backend, _codes_of(function))
        context.callback = _ScopedConversion(context.callback, identity, self, comparison)
        self.num_graphs = 0
        """The number of graphs captured from the frame that is being converted."""
        self.left_silently: CaptureEvent | None = None
        """The first frame without a graph that `on_event` did not report. It explains why nothing was captured."""
        self._failed_guards: list[str] = []
        self._shapes: ShapeEnv | None = None
        self._fake_mode: FakeTensorMode | None = None
        self.home = _definition_of(function)
        """The place of the function's definition in the user's code."""
        self._function = function
        self.call: UserCall = context(_with_own_code(function, weakly(self._run_uncaptured)))

    def _backend(self, gm: fx.GraphModule, example_inputs: list[object]) -> UserCall:
        broken = getattr(gm, "compile_subgraph_reason", None)
        if broken is not None and broken.graph_break:
            where = user_location(broken.user_stack)
            text = _first_line(broken.reason)
            self._on_event(CaptureEvent("graph-break", text, where))
            if not _is_harmless(str(broken.reason)):
                self._comparison.prevent(f"{where}: Python runs between its graphs that must not run twice ({text})")
        self.num_graphs += 1
        for value, is_local in dynamo.changed_objects():
            if (reason := wrong_captures.of_changed(value)) is not None:
                raise UnsupportedError(reason)
            self._comparison.undo(value, is_local, graph_location(gm))
        if gm.graph.find_nodes(op="call_method", target="register_hook"):
            self._comparison.prevent(f"{graph_location(gm)}: a hook of a tensor would run twice")
        if any("c10d" in str(node.target) for body in _bodies(gm) for node in body.graph.nodes):
            self._comparison.prevent(f"{graph_location(gm)}: other ranks do not expect its collectives twice")
        if (reason := wrong_captures.of_graph(gm)) is not None:
            raise UnsupportedError(reason)
        if _is_closed(gm):
            return gm.forward
        _refuse_missing_gradients(gm)
        pass_floats_as_tensors(gm)
        self._shapes = shapes_being_traced()
        self._fake_mode = mode_of(fake_inputs(gm))
        if broken is not None and broken.graph_break:
            return self._make_region(gm)
        return cut(gm, self._make_region)

    def _on_guard_failure(self, failure: GuardFailure) -> None:
        self._failed_guards.append(_first_line(failure.reason))

    def _on_end(self, code: types.CodeType) -> None:
        """Called when a frame was converted. Reports a recompile if guards of earlier versions failed."""
        if self._shapes is not None:
            forget_floats(self._shapes)
            self._shapes = None
        if self._fake_mode is not None:
            forget_originals(self._fake_mode)
            self._fake_mode = None
        if self._failed_guards:
            reason, where = parse_guard_failure(self._failed_guards[0])
            self._on_event(CaptureEvent("recompile", reason, where or self.place(code)))
            self._failed_guards.clear()

    def _on_skip(self, code: types.CodeType, error: BaseException) -> None:
        where = user_location(getattr(error, "real_stack", None)) or self.place(code)
        error = getattr(error, "inner_exception", error)  # Dynamo wraps what its backend raises
        event = CaptureEvent("skipped", f"{type(error).__name__}: {_first_line(str(error))}", where)
        if is_users(code.co_filename) or code.co_filename == __file__:
            self._on_event(event)
        elif self.left_silently is None:
            self.left_silently = event

    def note_without_graph(self, code: types.CodeType, reason: str) -> None:
        """Notes a frame that was left before its first operator: it has no graph that could carry the reason."""
        if self.left_silently is None:
            self.left_silently = CaptureEvent("graph-break", _first_line(reason), self.place(code))

    def _run_uncaptured(self, args: Any, kwargs: Any) -> object:
        """Runs a call as it is, because it fits no graph or its frame was given up."""
        if self._comparison.take_missed():
            return self._comparison.call_compared(self.call, args, kwargs)
        return self._function(*args, **kwargs)

    def place(self, code: types.CodeType) -> str:
        """Returns where the user wrote a frame. For the frame that only calls the user's callable, that is `home`."""
        return self.home if code.co_filename == __file__ else f"{code.co_filename}:{code.co_firstlineno}"


class _ScopedConversion:
    """Dynamo's frame callback under agspeed's settings. After an exception in it, the frame runs as it is."""

    is_converting = False
    """True while any instance converts a frame. Dynamo's compile lock admits one at a time."""

    def __init__(
        self,
        inner: Callable[..., ConvertFrameReturn],
        identity: DynamoIdentity,
        capture: Capture,
        comparison: Comparison,
    ) -> None:
        on_skip = capture._on_skip
        self._torchdynamo_orig_backend = dynamo.overhear(inner, lambda convert: _Overheard(convert, on_skip))
        self._inner = inner
        self._identity = identity
        self._on_skip = on_skip
        self._on_end = capture._on_end
        self._capture = capture
        self._comparison = comparison

    def __call__(
        self, frame: types.FrameType, cache_entry: object, frame_state: dict[str, object]
    ) -> ConvertFrameReturn:
        code = frame.f_code
        if _is_own(code):
            return ConvertFrameReturn(frame_exec_strategy=FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))
        if (refusal := self._identity.refusal(code)) is not None:
            return refusal
        if not self._comparison.may_convert:
            self._comparison.miss(is_whole=code.co_filename == __file__)
            return this_call_alone()
        self._capture.num_graphs = 0
        breaks = dynamo.graph_breaks()
        with deferred_signals():
            answer = self._convert(frame, cache_entry, frame_state)
        is_left = answer.guarded_code is None
        if not is_left:
            self._comparison.note_captured()
        if self._capture.num_graphs == 0 and (new := dynamo.graph_breaks().items() - breaks.items()):
            self._capture.note_without_graph(code, min(new)[0])
        if is_left and not is_users(code.co_filename):
            return answer
        if is_left and self._identity.has_versions(code):
            self._comparison.end()
            self._comparison.check()
            return self._identity.leave_this_call(code)
        answer = self._identity.note(code, answer)
        if is_users(code.co_filename) and (is_left or self._capture.num_graphs == 0):
            self._comparison.prevent(f"{self._capture.place(code)}: {code.co_name} runs as Python")
            self._comparison.check()
        return answer

    def _convert(
        self, frame: types.FrameType, cache_entry: object, frame_state: dict[str, object]
    ) -> ConvertFrameReturn:
        own = self._identity.own_versions(cache_entry)
        try:
            with (
                dynamo.settings(_SETTINGS | self._identity.limits(frame.f_code)),
                log_messages.left_out(self._comparison.obstacle is None),  # the user's own code gives its messages
                dynamo.answering(self._is_compiling),
                dynamo.left_out((*_LEFT_OUT, *wrong_captures.left_out())),
                wrong_captures.guarding_classes(),
                self._identity.in_force(),
            ):
                if frame.f_code.co_name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX):
                    results = {name: value for name, value in frame.f_locals.items() if name.startswith("___stack")}
                    self._identity.expect_floats(frame.f_code, results)
                _ScopedConversion.is_converting = True
                return self._inner(frame, own, frame_state)
        except Exception as error:
            logger.debug("frame %s is left to eager", frame.f_code.co_name, exc_info=True)
            self._on_skip(frame.f_code, error)
            return ConvertFrameReturn()
        finally:
            _ScopedConversion.is_converting = False
            self._on_end(frame.f_code)

    def _is_compiling(self, path: str) -> bool:
        """Answers code in file `path` that asks whether it is being compiled. The user's own code gets eager's answer.
        An installed package may use its path for compilers, if the comparison covers both of its paths."""
        return not is_users(path) or (is_installed(path) and self._comparison.obstacle is None)


class _Overheard:
    """Wraps Dynamo's inner conversion, which swallows its reasons for giving up a frame. Reports them to `on_skip`."""

    def __init__(self, inner: Callable[..., object], on_skip: Callable[[types.CodeType, BaseException], None]) -> None:
        self._inner = inner
        self._on_skip = on_skip

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def __call__(self, frame: types.FrameType, *args: Any, **kwargs: Any) -> object:
        try:
            return self._inner(frame, *args, **kwargs)
        except SkipFrame:  # nothing in this frame to capture
            raise
        except Exception as error:
            self._on_skip(frame.f_code, error)
            raise


def _is_harmless(reason: str) -> bool:
    """Returns whether only a decision between graphs, or a recurrent layer, runs as Python at a graph break."""
    is_layer = any(f"<function {function.__qualname__} at" in reason for function in _LEFT_OUT)
    return is_layer or reason.startswith(_HARMLESS_BREAKS)


def _bodies(gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """Returns a graph and the bodies of its higher-order operators."""
    return (body for body in gm.modules() if isinstance(body, fx.GraphModule))


def _is_closed(gm: fx.GraphModule) -> bool:
    """Returns whether a graph has no inputs and no outputs, for example one that only takes a seed from the system."""
    return not gm.graph.find_nodes(op="placeholder") and not gm.graph.output_node().args[0]


def _refuse_missing_gradients(gm: fx.GraphModule) -> None:
    """Raises for a checkpointed part that behaves differently in eager: a reentrant one gives its parameters no
    gradients if none of its inputs requires grad."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint):
        if node.kwargs.get("use_reentrant") and not any(map(_is_derived, node.args[1:])):
            raise UnsupportedError(
                "no input of a checkpointed part requires grad: with use_reentrant=True eager then has no gradients "
                "for its parameters"
            )


def _is_derived(argument: object) -> bool:
    """Returns whether a value requires grad and is not a parameter."""
    value = argument.meta.get("example_value") if isinstance(argument, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.requires_grad and not isinstance(value, torch.nn.Parameter)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_converting() -> bool:
    """Returns True while Dynamo traces the calling code for one of our captures, and False when that code runs."""
    return _ScopedConversion.is_converting


def _with_own_code(function: UserCall, run_uncaptured: Callable[[object, object], object]) -> UserCall:
    """Returns a plain function that calls `function` and has its own code object and globals.

    Dynamo keeps its cache per code object, and the compiled graphs in the frame's globals: both die with the function.
    The function's own code runs only for calls that fit none of Dynamo's versions.
    """
    is_converting = _is_converting

    def call_captured(*args: Any, **kwargs: Any) -> object:
        if is_converting():
            return function(*args, **kwargs)
        return run_uncaptured(args, kwargs)

    code = call_captured.__code__.replace()
    own_globals = {"__builtins__": builtins, "__name__": __name__}
    return types.FunctionType(code, own_globals, "call_captured", None, call_captured.__closure__)


def _is_own(code: types.CodeType) -> bool:
    """Returns whether code is agspeed's own, such as a region's backward. Only `call_captured` may be traced."""
    return code.co_filename.startswith(PACKAGE) and code.co_name != "call_captured"


def _definition_of(function: UserCall) -> str:
    """Returns "file.py:12" for the definition of a function, or of a bound module's forward; "" if unknown."""
    owner = getattr(function, "__self__", None)
    written = inspect.unwrap(owner.forward if isinstance(owner, torch.nn.Module) else function)
    code = getattr(written, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _codes_of(function: UserCall) -> Iterator[types.CodeType]:
    """Yields the user's code objects of a function or, for a module, of all its modules' forwards, with wrappers."""
    owner = getattr(function, "__self__", None)
    modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
    for layer in (function, *(getattr(module, "forward", None) for module in modules)):
        while layer is not None:
            code = getattr(layer, "__code__", None)
            if code is not None and is_users(code.co_filename):
                yield code
            layer = getattr(layer, "__wrapped__", None)


def parse_guard_failure(text: str) -> tuple[str, str]:
    """Splits "0/1: guard  # code  # path.py:12 in f" into (guard, "path.py:12"); the place is "" if it is missing."""
    guard, *comments = (part.strip() for part in re.sub(r"^\d+/\d+: ", "", text).split("  # "))
    found = re.match(r"(.+?:\d+) in ", comments[-1]) if comments else None
    return guard, found.group(1) if found else ""


def user_location(stack: Sequence[traceback.FrameSummary] | None) -> str:
    """Returns "file.py:12" for the innermost frame of the user's code in a traceback summary, or ""."""
    frames = [f for f in stack or [] if is_users(f.filename)]
    chosen = frames[-1] if frames else (stack[-1] if stack else None)
    return f"{chosen.filename}:{chosen.lineno}" if chosen is not None else ""


def _first_line(text: object) -> str:
    lines = str(text).strip().splitlines()
    return lines[0] if lines else ""
