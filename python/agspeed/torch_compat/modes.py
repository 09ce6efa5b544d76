# SPDX-License-Identifier: Apache-2.0
"""Modes that intercept each operator, trees of tensors, and tensors that wrap others.

Without this part, no candidate can be checked against eager, so everything runs eagerly. All needs exist since torch
2.11. A mode belongs to the thread that enters it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten
    from torch.utils.checkpoint import _StopRecomputationError

__all__ = [
    "TorchDispatchMode",
    "_StopRecomputationError",
    "_disable_current_modes",
    "is_traceable_wrapper_subclass",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
]

PART = Part(
    "modes",
    __name__,
    exports=(
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._python_dispatch._disable_current_modes",
        "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
        "torch.utils._pytree.tree_flatten",
        "torch.utils._pytree.tree_leaves",
        "torch.utils._pytree.tree_map_only",
        "torch.utils._pytree.tree_unflatten",
        "torch.utils.checkpoint._StopRecomputationError",
    ),
    needs=(
        "torch._C._functorch.peek_interpreter_stack",
        "torch._C._get_dispatch_stack_at",
        "torch._C._get_function_stack_at",
        "torch._C._len_torch_dispatch_stack",
        "torch._C._len_torch_function_stack",
        "torch._C._pop_torch_function_stack",
        "torch._C._push_on_torch_function_stack",
        "torch._C._is_tracing",
        "torch.fx._symbolic_trace.is_fx_symbolic_tracing",
        "torch.utils._device.DeviceContext",
    ),
)
if not TYPE_CHECKING:
    __getattr__ = PART.load


def is_watched() -> bool:
    """Whether a mode or a transform of torch.func is active that intercepts each operator.

    The mode of ``torch.set_default_device`` does not count, because a captured graph contains its effects.
    """
    import torch

    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return torch._C._len_torch_function_stack() > 0 and bool(_function_modes())


def reader() -> Callable[[], bool]:
    """Returns a function that tells whether the running code is traced (`modules.is_traced`) or watched (`is_watched`).

    The function is one line of Python, so that it is cheap enough for every call.
    """
    import torch

    tracing, dispatch, functions = (
        torch._C._is_tracing,
        torch._C._len_torch_dispatch_stack,
        torch._C._len_torch_function_stack,
    )
    compiling, symbolic, transform = (
        torch.compiler.is_compiling,
        torch.fx._symbolic_trace.is_fx_symbolic_tracing,
        torch._C._functorch.peek_interpreter_stack,
    )
    return lambda: bool(
        compiling() or dispatch() or transform() or tracing() or symbolic() or (functions() and _function_modes())
    )


def watchers() -> str:
    """The names of the modes and transforms that make `is_watched` true."""
    import torch

    modes = [torch._C._get_dispatch_stack_at(index) for index in range(torch._C._len_torch_dispatch_stack())]
    names = [type(mode).__name__ for mode in (*modes, *_function_modes())]
    return ", ".join(names) or "a transform of torch.func"


@contextmanager
def hidden_function_modes() -> Iterator[None]:
    """Takes modes that intercept functions of torch off their stack while a captured graph runs, because the graph
    contains their effects. Modes that the graph enters itself work."""
    import torch

    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


def _function_modes() -> list[Any]:
    import torch
    from torch.utils._device import DeviceContext

    modes = [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]
    return [mode for mode in modes if not isinstance(mode, DeviceContext)]
