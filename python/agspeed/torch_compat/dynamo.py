# SPDX-License-Identifier: Apache-2.0
"""Dynamo: capture, its memory of earlier conversions, its exceptions, its names for sources and for NumPy.

Without this part, nothing is captured, so everything runs eagerly. All needs exist since torch 2.11; a function states
how newer releases differ. Threads: as for Dynamo itself; a function states if it takes Dynamo's compile lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from agspeed.torch_compat import compiler_cache
from agspeed.torch_compat.part import Part
from agspeed.torch_compat.release import minor

if TYPE_CHECKING:
    from torch._dynamo.convert_frame import Tracker
    from torch._dynamo.exc import SkipFrame, TensorifyScalarRestartAnalysis
    from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
    from torch._dynamo.source import ConstantSource
    from torch._dynamo.types import (  # type: ignore[attr-defined]
        ConvertFrameReturn,
        FrameAction,
        FrameExecStrategy,
    )
    from torch._dynamo.utils import numpy_method_wrapper, numpy_operator_wrapper, numpy_to_tensor_wrapper

__all__ = [
    "TORCH_DYNAMO_RESUME_IN_PREFIX",
    "ConstantSource",
    "ConvertFrameReturn",
    "FrameAction",
    "FrameExecStrategy",
    "SkipFrame",
    "TensorifyScalarRestartAnalysis",
    "Tracker",
    "numpy_method_wrapper",
    "numpy_operator_wrapper",
    "numpy_to_tensor_wrapper",
]

PART = Part(
    "dynamo",
    __name__,
    exports=(
        "torch._dynamo.convert_frame.Tracker",
        "torch._dynamo.exc.SkipFrame",
        "torch._dynamo.exc.TensorifyScalarRestartAnalysis",
        "torch._dynamo.resume_execution.TORCH_DYNAMO_RESUME_IN_PREFIX",
        "torch._dynamo.source.ConstantSource",
        "torch._dynamo.types.ConvertFrameReturn",
        "torch._dynamo.types.FrameAction",
        "torch._dynamo.types.FrameExecStrategy",
        "torch._dynamo.utils.numpy_method_wrapper",
        "torch._dynamo.utils.numpy_operator_wrapper",
        "torch._dynamo.utils.numpy_to_tensor_wrapper",
    ),
    needs=(
        "torch._C._dynamo.eval_frame._debug_get_cache_entry_list",
        "torch._C._dynamo.eval_frame.set_code_exec_strategy",
        "torch._dynamo.OptimizedModule",
        "torch._dynamo.config.accumulated_recompile_limit",
        "torch._dynamo.config.patch",
        "torch._dynamo.convert_frame.CatchErrorsWrapper._torchdynamo_orig_backend",
        "torch._dynamo.convert_frame.ConvertFrame._inner_convert",
        "torch._dynamo.convert_frame.Tracker.seen",
        "torch._dynamo.convert_frame.compile_lock",
        "torch._dynamo.guards.DeletedGuardManagerWrapper",
        "torch._dynamo.eval_frame._optimize(backend, guard_fail_fn, dynamic)",
        "torch._dynamo.optimize",
        "torch._dynamo.pgo.CodeId.make",
        "torch._dynamo.pgo.CodeState.automatic_dynamic",
        "torch._dynamo.pgo.FrameStateSizeEntry.make_scalar",
        "torch._dynamo.pgo._CODE_STATE",
        "torch._dynamo.pgo.auto_dynamic",
        "torch._dynamo.side_effects.SideEffects.is_modified",
        "torch._dynamo.source.is_from_local_source",
        "torch._dynamo.side_effects.SideEffects.id_to_variable",
        "torch._dynamo.side_effects.SideEffects.keepalive",
        "torch._dynamo.symbolic_convert.InstructionTranslator.current_tx",
        "torch._dynamo.symbolic_convert.TensorifyState.specialize",
        "torch._dynamo.types.FrameAction.DEFAULT",
        "torch._dynamo.external_utils.is_compiling",
        "torch._utils.is_compiling",
        "torch.compiler.is_compiling",
        "torch.compiler.is_dynamo_compiling",
        "torch._dynamo.variables.ConstantVariable.create",
        "torch._dynamo.variables.base.AttributeMutationExisting",
        "torch._dynamo.variables.base.ValueMutationExisting",
        "torch._dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers",
        "torch._dynamo.types.ConvertFrameReturn(frame_exec_strategy, apply_to_code, guarded_code)",
        "torch._dynamo.utils.CleanupManager.instance._remove_id",
        "torch._dynamo.utils.CleanupManager.instance.values",
        "torch._dynamo.utils.counters",
        "torch._dynamo.utils.preserve_rng_state",
        "torch._numpy.ndarray",
    ),
)
if not TYPE_CHECKING:
    __getattr__ = PART.load

HOME = "torch._dynamo"
"""Dynamo's package. torch imports it at the first compile."""
Sizes = defaultdict[Any, Any]
"""Dynamo's knowledge about the sizes that code was called with."""
_REGIONS = (2, 13)
"""Since this release, a callable may have its own compiled versions (`isolate_recompiles`). All of them are counted."""


def load() -> None:
    """Imports Dynamo, which takes a second. Raises: any error of the import."""
    with compiler_cache.while_loading():
        importlib.import_module("torch._dynamo")


def is_compiled(module: Any) -> bool:
    """Whether ``torch.compile`` made `module` from another module."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def is_compiled_function(function: Any) -> bool:
    """Whether ``torch.compile`` returned `function`. torch marks such functions with `_torchdynamo_orig_callable`.

    If a torch drops that attribute, agspeed treats the function as a plain one and captures it once more.
    """
    return hasattr(function, "_torchdynamo_orig_callable")


def has_converted() -> bool:
    """Whether Dynamo has converted any frame in this process."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(dynamo.utils.counters["frames"])


# --- conversion -------------------------------------------------------------------------------------------------------


def new_context(
    backend: Callable[..., Any], dynamic: bool | None, on_guard_failure: Callable[[Any], None]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator: Dynamo captures the frames of the decorated function for `backend`.

    The decorator's attribute `callback` is Dynamo's callback for a frame. Other callables may run the same code; their
    compiled versions are kept apart: since torch 2.13 by Dynamo, before that by `own_versions`.
    """
    import torch._dynamo

    apart = {"isolate_recompiles": True} if minor() >= _REGIONS else {}
    return torch._dynamo.optimize(backend, dynamic=dynamic, guard_fail_fn=on_guard_failure, **apart)


def overhear(callback: Any, listen: Callable[[Any], Any]) -> Any:
    """Replaces the conversion within a context's `callback` by `listen(inner)`, because the callback hides the reasons
    why it gives up a frame. Returns: the object that other callbacks set as `_torchdynamo_orig_backend` to share its
    versions. Needs that attribute and `ConvertFrame._inner_convert`."""
    convert_frame = callback._torchdynamo_orig_backend
    convert_frame._inner_convert = listen(convert_frame._inner_convert)
    return convert_frame


def graph_breaks() -> dict[str, int]:
    """The number of graph breaks in this process, by Dynamo's text of the reason."""
    import torch._dynamo

    return dict(torch._dynamo.utils.counters["graph_break"])


def settings(changed: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Inside the block, Dynamo has these settings, and the parameters of modules are inputs of its graphs, so that
    replacing one costs no recompile: torch 2.11 needs a setting for that, and later ones warn about it."""
    import torch._dynamo

    as_inputs = {"inline_inbuilt_nn_modules": True} if minor() < (2, 12) else {}
    patch: contextlib.AbstractContextManager[Any] = torch._dynamo.config.patch(changed | as_inputs)
    return patch


@contextlib.contextmanager
def left_out(functions: Iterable[Any]) -> Iterator[None]:
    """Inside the block, Dynamo calls these functions without tracing them. An attribute on each function asks for that.
    If a torch ignores the attribute, Dynamo traces them: graphs are larger then, but results are the same."""
    for function in functions:
        function._torchdynamo_disable = True
    try:
        yield
    finally:
        for function in functions:
            del function._torchdynamo_disable


@contextlib.contextmanager
def answering(is_compiling: Callable[[str], bool]) -> Iterator[None]:
    """Inside the block, captured code that asks whether it is being compiled gets the answer of `is_compiling`.

    `is_compiling` gets the path of the file that asks. A helper whose name ends in "compiling" asks for its caller.
    Without the block, the answer is always True.
    """
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    own = {asked: handlers[asked] for asked in _questions() if asked in handlers}

    def answer(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._dynamo.variables import ConstantVariable

        asker = tx
        while asker.f_code.co_name.endswith("compiling") and asker.parent is not None:
            asker = asker.parent
        if is_compiling(asker.f_code.co_filename):
            return own[variable.value](variable, tx, *args, **kwargs)
        return ConstantVariable.create(False)

    handlers.update(dict.fromkeys(own, answer))
    try:
        yield
    finally:
        handlers.update(own)


def _questions() -> tuple[Any, ...]:
    """The functions that tell code whether it is being compiled."""
    import torch
    import torch._dynamo.external_utils

    old = (torch._utils.is_compiling, torch._dynamo.external_utils.is_compiling)
    return (torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, *old)


def preserve_rng_state() -> contextlib.AbstractContextManager[Any]:
    """Inside the block, tracing may draw random numbers; the generators are reset afterwards."""
    import torch._dynamo.utils

    return torch._dynamo.utils.preserve_rng_state()


def changed_objects() -> list[tuple[Any, bool]]:
    """The existing objects that the current frame changes; call it while Dynamo passes a graph to a backend.

    Dynamo replays these changes after the graph. Each object comes with whether a local variable or an argument holds
    it. A global variable that is assigned counts as an object.
    """
    from torch._dynamo.source import is_from_local_source
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting

    effects = InstructionTranslator.current_tx().output.side_effects
    objects = {id(value): value for value in effects.keepalive}
    return [
        (objects.get(identity, variable), variable.source is None or is_from_local_source(variable.source))
        for identity, variable in effects.id_to_variable.items()
        if isinstance(variable.mutation_type, AttributeMutationExisting | ValueMutationExisting)
        and effects.is_modified(variable)
    ]


def specialize_float(symbol: str) -> None:
    """Makes the float with this symbol a constant of the graph when the frame is captured again."""
    from torch._dynamo.symbolic_convert import TensorifyState

    TensorifyState.specialize(symbol)


# --- compiled versions and sizes --------------------------------------------------------------------------------------


@dataclass
class _Version:
    """A compiled version of a frame, as a link of the chain that Dynamo's conversion reads.

    All links of a chain belong to one target."""

    guard_manager: Any
    code: CodeType
    compile_id: Any
    next: _Version | None


def versions_of(code: CodeType) -> list[Any]:
    """All compiled versions of `code`. Each has an attribute `backend`, the function that it was compiled for."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    return list(_debug_get_cache_entry_list(code))


def own_versions(entry: Any, backend: Callable[..., Any]) -> Any:
    """The versions for `backend` among the versions that Dynamo passes to a conversion. Until torch 2.12, Dynamo passes
    a chain of all versions, linked by `next`. Since 2.13, it passes only the versions of the callable's own region."""
    if minor() >= _REGIONS:
        return entry
    chain = []
    while entry is not None:
        chain.append(entry)
        entry = entry.next
    found: _Version | None = None
    for version in reversed(chain):
        if version.backend is backend:
            found = _Version(version.guard_manager, version.code, version.compile_id, found)
    return found


def limits(code: CodeType, backend: Callable[..., Any]) -> dict[str, Any]:
    """Settings that raise Dynamo's limit of versions by the number of versions for other backends. Since torch 2.13,
    Dynamo gives up code when the versions of all regions together reach the limit."""
    if minor() < _REGIONS:
        return {}
    import torch._dynamo

    others = sum(version.backend is not backend for version in versions_of(code))
    return {"accumulated_recompile_limit": torch._dynamo.config.accumulated_recompile_limit + others}


def try_again(code: CodeType) -> None:
    """Makes Dynamo convert code again that it has given up."""
    from torch._C._dynamo.eval_frame import set_code_exec_strategy
    from torch._dynamo.types import FrameAction, FrameExecStrategy  # type: ignore[attr-defined]

    set_code_exec_strategy(code, FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT))


def drop(version: Any, reason: str) -> None:
    """Frees a compiled version and its clean-up entry, although its code object lives on. Dynamo's own clean-up would
    wait for that code object, which the tracebacks of later conversions keep. A version without `extra_state` stays."""
    from torch._dynamo.guards import DeletedGuardManagerWrapper
    from torch._dynamo.utils import CleanupManager

    state = getattr(version.guard_manager, "extra_state", None)
    if state is None:
        return
    compiled = version.code
    state.invalidate(version, DeletedGuardManagerWrapper(reason))
    if id(compiled) in CleanupManager.instance.values:
        CleanupManager.instance._remove_id(id(compiled))


def new_sizes() -> Sizes:
    """Returns the empty knowledge of a process before its first capture."""
    from torch._dynamo import pgo

    return defaultdict(pgo.CodeState)


@contextlib.contextmanager
def knowing(sizes: Sizes) -> Iterator[None]:
    """Inside the block, Dynamo uses `sizes` as its knowledge and adds to it. The block holds Dynamo's compile lock."""
    from torch._dynamo import pgo
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        others, pgo._CODE_STATE = pgo._CODE_STATE, sizes
        try:
            yield
        finally:
            pgo._CODE_STATE = others


def expect_float(sizes: Sizes, code: CodeType, name: str) -> None:
    """Makes Dynamo treat the local variable `name` of `code` as a number that differs between calls."""
    from torch._dynamo import pgo

    seen = sizes[pgo.CodeId.make(code)].automatic_dynamic
    seen[f"L[{name!r}]"] = pgo.FrameStateSizeEntry.make_scalar(pgo.auto_dynamic)  # type: ignore[arg-type]


# --- names ------------------------------------------------------------------------------------------------------------


def is_source(value: Any) -> bool:
    """Whether `value` is a source: Dynamo's record of where a graph's input comes from."""
    return dataclasses.is_dataclass(value) and type(value).__module__ == "torch._dynamo.source"


def source_class(name: str) -> type | None:
    """The class of sources with this name, or the enumeration in the same module; None if there is none."""
    home = importlib.import_module("torch._dynamo.source")
    found = getattr(home, name, None)
    return found if isinstance(found, type) and found.__module__ == home.__name__ else None


def is_numpy_wrapper(target: Any) -> bool:
    """Whether the target of a call in a graph is one of Dynamo's wrappers of torch's NumPy functions."""
    return type(target).__module__ == "torch._dynamo.utils"


def numpy_of_torch() -> ModuleType:
    """torch's implementation of NumPy."""
    return importlib.import_module("torch._numpy")


def is_numpy_of_torch(function: Any) -> bool:
    return str(function.__module__).startswith("torch._numpy")
