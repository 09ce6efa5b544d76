# SPDX-License-Identifier: Apache-2.0
"""What was handed to optimize(): a module that is patched in place, or a step function that is wrapped.

A module is switched by its `_compiled_call_impl` slot: free of cost, invisible to ``state_dict``, dropped by pickling
and ``deepcopy``, and undone by dropping it. Optimizing never touches the module's class, forward, parameters or
hooks.
"""

from __future__ import annotations

import functools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from agspeed.devices.placement import module_tensors

_MARK = "agspeed_session"


class Target(ABC):
    """The user's callable: how to run it untouched and how to put something else in its place."""

    name: str
    eager: Callable[..., Any]
    """Runs the user's code exactly as it was."""
    has_untouched_eager = True
    """False where eager means the captured graphs run operator by operator, because somebody else owns capture."""

    def eager_entry(self) -> Callable[..., Any]:
        """What `install` puts in the place of the user's code to run just that."""
        eager = self.eager

        def run_eagerly(*args: Any, **kwargs: Any) -> Any:
            return eager(*args, **kwargs)

        return run_eagerly

    @abstractmethod
    def install(self, entry: Callable[..., Any], owner: object) -> None:
        """Makes calls of the target go to `entry`, on behalf of `owner`: the session (see `owner_of`)."""

    @abstractmethod
    def uninstall(self) -> None:
        """Makes calls of the target go to the user's code again, at no cost."""

    @abstractmethod
    def parameters(self) -> Iterable[torch.Tensor]:
        """The trainable tensors that belong to the target, as of now."""

    def tensors(self) -> Iterable[torch.Tensor]:
        """All tensors that belong to the target, as of now."""
        return self.parameters()

    def trains_now(self) -> bool:
        """A call now may be part of a training step."""
        return torch.is_grad_enabled()


class ModuleTarget(Target):
    """An ``nn.Module``, patched in place."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.name = type(module).__name__
        self.eager = module._call_impl

    def install(self, entry: Callable[..., Any], owner: object) -> None:
        setattr(entry, _MARK, owner)
        self.module._compiled_call_impl = entry

    def uninstall(self) -> None:
        vars(self.module).pop("_compiled_call_impl", None)

    def parameters(self) -> Iterable[torch.Tensor]:
        return self.module.parameters()

    def tensors(self) -> Iterable[torch.Tensor]:
        return module_tensors(self.module)


class FunctionTarget(Target):
    """A step function. `wrapper` is what the user gets back."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self.eager = function
        self._entry = function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._entry(*args, **kwargs)

        self.wrapper = call

    def install(self, entry: Callable[..., Any], owner: object) -> None:
        setattr(self.wrapper, _MARK, owner)
        self._entry = entry

    def uninstall(self) -> None:
        self._entry = self.eager
        if hasattr(self.wrapper, _MARK):
            delattr(self.wrapper, _MARK)

    def parameters(self) -> Iterable[torch.Tensor]:
        return ()

    def trains_now(self) -> bool:
        return True


class CompiledFramesTarget(Target):
    """Graphs that torch.compile captured and calls: nothing to install, parameters are those the graphs take."""

    name = "torch.compile"
    has_untouched_eager = False

    def __init__(self) -> None:
        self.eager = _not_callable
        self._parameters: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

    def install(self, entry: Callable[..., Any], owner: object) -> None:
        """torch.compile's own code calls the regions."""

    def uninstall(self) -> None:
        """The regions stay as they are until torch.compile drops them."""

    def remember(self, args: Sequence[Any]) -> None:
        """Notes the parameters among a region's arguments."""
        for value in args:
            if isinstance(value, nn.Parameter):
                self._parameters[id(value)] = value

    def parameters(self) -> Iterable[torch.Tensor]:
        return list(self._parameters.values())


def _not_callable(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a torch.compile session has no callable of its own")


def is_traced() -> bool:
    """Somebody else is reading the target: torch.compile, torch.export, torch.fx or torch.jit.trace."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or is_fx_symbolic_tracing()  # type: ignore[no-untyped-call]


def owner_of(target: object) -> object:
    """Who has put something in the place of a module or step function, or None."""
    holder = target._compiled_call_impl if isinstance(target, nn.Module) else target
    return getattr(holder, _MARK, None)
