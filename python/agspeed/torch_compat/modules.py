# SPDX-License-Identifier: Apache-2.0
"""Private members of modules and tensors: the slot that receives the calls of a module, and the memory of tensors.

The slot `_compiled_call_impl` is the one that ``nn.Module.compile`` fills. Without this part, no module can be patched,
so everything runs eagerly. All needs exist since torch 2.11. Threads: fill a slot only between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["_BatchNorm"]

PART = Part(
    "modules",
    __name__,
    exports=("torch.nn.modules.batchnorm._BatchNorm",),
    needs=(
        "torch._C._is_tracing",
        "torch.UntypedStorage._cdata",
        "torch.Tensor._version",
        "torch.fx._symbolic_trace.is_fx_symbolic_tracing",
        "torch.nn.Module._call_impl",
        "torch.nn.Module._backward_hooks",
        "torch.nn.Module._backward_pre_hooks",
        "torch.nn.Module._compiled_call_impl",
        "torch.nn.Module._non_persistent_buffers_set",
        "torch.nn.modules.module._global_backward_hooks",
        "torch.nn.modules.module._global_backward_pre_hooks",
    ),
)
if not TYPE_CHECKING:
    __getattr__ = PART.load


SLOT = "_compiled_call_impl"
"""The slot's attribute name."""


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether full backward hooks are registered for a module itself, or for all modules."""
    from torch.nn.modules import module as hooks

    for_all = hooks._global_backward_hooks or hooks._global_backward_pre_hooks
    return bool(for_all or module._backward_hooks or module._backward_pre_hooks)


def eager_call(module: nn.Module) -> Callable[..., Any]:
    """Returns the function that calls a module with its hooks and bypasses its slot."""
    return module._call_impl


def entry(module: nn.Module) -> Any:
    """The content of a module's own slot; None if it is empty, or if modules have no such slot."""
    return vars(module).get(SLOT)


def set_entry(module: nn.Module, call: Callable[..., Any]) -> None:
    """Makes all calls of a module go to `call`."""
    module._compiled_call_impl = call


def drop_entry(module: nn.Module) -> None:
    """Makes calls of a module go to its own code, as if its slot had never been filled."""
    vars(module).pop("_compiled_call_impl", None)


class _ReaderOfAll:
    """Stands for the slot of all modules. It is no `property`, because TorchScript compiles those."""

    def __init__(self, read: Callable[[nn.Module], Callable[..., Any] | None]) -> None:
        self._read = read

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Callable[..., Any] | None:
        return None if module is None else self._read(module)

    def __set__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        vars(module)[SLOT] = call

    def __delete__(self, module: nn.Module) -> None:
        drop_entry(module)


def set_reader_of_all(read: Callable[[nn.Module], Callable[..., Any] | None]) -> None:
    """Makes every call of a module go to ``read(module)``, or to the module's own code if that is None. `entry` and the
    functions that fill or empty a module's own slot work as before."""
    from torch import nn

    nn.Module._compiled_call_impl = _ReaderOfAll(read)  # type: ignore[assignment]


def drop_reader_of_all() -> None:
    """Makes every module's own slot count again."""
    from torch import nn

    nn.Module._compiled_call_impl = None


def unsaved_buffers(module: nn.Module) -> Collection[str]:
    """The names of a module's own buffers that its state_dict leaves out."""
    return module._non_persistent_buffers_set


def is_traced() -> bool:
    """Whether another tool traces the running code: torch.compile, torch.export, torch.fx or torch.jit.trace."""
    import torch

    return torch.compiler.is_compiling() or torch._C._is_tracing() or torch.fx._symbolic_trace.is_fx_symbolic_tracing()


def storage_of(tensor: Tensor) -> int:
    """A number that identifies a tensor's memory while the memory lives. Tensors that share memory share the number."""
    return int(tensor.untyped_storage()._cdata)


def version_of(tensor: Any) -> int:
    """The number of changes in place of a tensor; 0 for anything that is not a tensor."""
    return getattr(tensor, "_version", 0)
