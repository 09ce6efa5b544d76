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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from agspeed.devices.placement import module_tensors
from agspeed.distributed.sharded import Sharding, calls_others, local_parts, units_of

_MARK = "agspeed_session"

Capturing = Callable[[Callable[..., Any], str | None], Callable[..., Any]]
"""Called with a function and the name of the part of the target that it belongs to; None: it is the whole target."""


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

    def captured(self, capture: Capturing) -> Callable[..., Any]:
        """Runs the user's code as captured graphs, after `switch_parts`. capture: makes what does so of a function."""
        return capture(self.eager, None)

    def switch_parts(self, *, captured: bool) -> None:  # noqa: B027 - most targets have no parts
        """From the next call on `captured` is what is called, or `eager`. Between two steps."""

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


class ShardedTarget(ModuleTarget):
    """A module with units of `fully_shard`. Each unit that calls no other one is captured on its own: its forward is
    switched in the instance's dictionary, so that FSDP's hooks stay outside of what is compiled. All other code of the
    module runs as it is.
    """

    def __init__(self, module: nn.Module, units: Mapping[str, nn.Module]) -> None:
        super().__init__(module)
        self.sharding = Sharding.of(module, units)
        self.units: dict[str, str | None] = {name: _why_left(unit, units) for name, unit in units.items()}
        """By name, with the reason where a unit is not to be captured."""
        self._captured = {name: units[name] for name, why in self.units.items() if why is None}
        self._own: dict[str, Any] = {}  # what users have put in the place of a unit's forward
        self._entries: dict[str, Callable[..., Any]] = {}
        self._is_on = False  # for a training call and its backward, in which checkpoints may call a unit again

    def eager_entry(self) -> Callable[..., Any]:
        eager = self.eager

        def run_eagerly(*args: Any, **kwargs: Any) -> Any:
            self._is_on = False
            return eager(*args, **kwargs)

        return run_eagerly

    def captured(self, capture: Capturing) -> Callable[..., Any]:
        eager = self.eager
        for name, unit in self._captured.items():
            self._own[name] = vars(unit).get("forward")
            self._entries[name] = self._unit_entry(unit.forward, capture(unit.forward, name))

        def run_captured(*args: Any, **kwargs: Any) -> Any:
            self._is_on = True
            return eager(*args, **kwargs)

        return run_captured

    def switch_parts(self, *, captured: bool) -> None:
        for name, entry in self._entries.items():
            attributes = vars(self._captured[name])
            if captured:
                attributes["forward"] = entry
            elif attributes.get("forward") is entry:
                del attributes["forward"]
                if self._own[name] is not None:
                    attributes["forward"] = self._own[name]

    def uninstall(self) -> None:
        super().uninstall()
        self.switch_parts(captured=False)

    def tensors(self) -> Iterable[torch.Tensor]:
        return local_parts(super().tensors())

    def _unit_entry(self, eager: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._is_on and torch.is_grad_enabled() and not is_traced():
                return compiled(*args, **kwargs)
            return eager(*args, **kwargs)

        return forward


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


def _why_left(unit: nn.Module, units: Mapping[str, nn.Module]) -> str | None:
    if calls_others(unit, units):
        return "it calls other units"
    return "it is compiled already" if unit._compiled_call_impl is not None else None


def target_of(module: nn.Module) -> ModuleTarget:
    """The target that a module is."""
    units = units_of(module)
    return ShardedTarget(module, units) if units else ModuleTarget(module)


def is_traced() -> bool:
    """Somebody else is reading the target: torch.compile, torch.export, torch.fx or torch.jit.trace."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or is_fx_symbolic_tracing()  # type: ignore[no-untyped-call]


def owner_of(target: object) -> object:
    """Who has put something in the place of a module or step function, or None."""
    holder = target._compiled_call_impl if isinstance(target, nn.Module) else target
    return getattr(holder, _MARK, None)
