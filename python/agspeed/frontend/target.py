# SPDX-License-Identifier: Apache-2.0
"""Target: the object passed to `optimize`: a module that is patched in place, or a step function that is wrapped.

A module is switched through its slot `_compiled_call_impl`. The slot costs nothing and is invisible to ``state_dict``;
pickling and ``deepcopy`` drop it, and deleting it undoes the switch. Optimizing never touches the module's class,
parameters or hooks. It replaces the forward only in units of `fully_shard`.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from agspeed.devices.placement import module_tensors
from agspeed.distributed.sharded import (
    Sharding,
    are_clear,
    calls_others,
    is_gathered_again,
    local_parts,
    sharded_parameters,
    units_of,
)
from agspeed.torch_compat import modules
from agspeed.torch_compat.autograd import current_backward
from agspeed.torch_compat.dynamo import is_compiled_function
from agspeed.torch_compat.modules import is_traced

_MARK = "agspeed_session"

UserCall = Callable[..., Any]
"""Code of the user, or code that replaces it: it takes and returns what the user's code does."""
Capturing = Callable[[UserCall, str | None], UserCall]
"""Takes a function and the name of its part of the target (None: the whole target). Returns the captured function."""


class Target(ABC):
    """The user's callable: runs it untouched, and replaces it."""

    name: str
    eager: UserCall
    """Runs the user's code exactly as it was."""
    has_untouched_eager = True
    """False if torch.compile owns capture: eager then means to run the captured graphs operator by operator."""
    runs_once: str | None = None
    """A sentence that says why the code cannot run a second time beside itself, or None."""
    has_parts = False
    """True if parts are captured separately. A part's runner must not change between a forward and its backward."""

    def eager_entry(self) -> UserCall:
        """Returns an entry for `install` that runs only the user's code."""
        eager = self.eager

        def run_eagerly(*args: Any, **kwargs: Any) -> object:
            return eager(*args, **kwargs)

        return run_eagerly

    def captured(self, capture: Capturing) -> UserCall:
        """Returns a callable that runs the user's code as captured graphs, after `switch_parts`. capture: captures one
        function."""
        return capture(self.eager, None)

    def switch_parts(self, *, captured: bool) -> None:  # noqa: B027 - most targets have no parts
        """Makes the parts run captured, or eagerly, from the next call on. Call it between two steps."""

    @abstractmethod
    def install(self, entry: UserCall, owner: object) -> None:
        """Makes calls of the target go to `entry`. owner: the session (see `owner_of`)."""

    @abstractmethod
    def uninstall(self) -> None:
        """Makes calls of the target go to the user's code again, at no cost."""

    @abstractmethod
    def parameters(self) -> Iterable[torch.Tensor]:
        """Returns the trainable tensors that belong to the target now."""

    def tensors(self) -> Iterable[torch.Tensor]:
        """Returns all tensors that belong to the target now."""
        return self.parameters()

    def trains_now(self) -> bool:
        """Returns whether a call now may be part of a training step."""
        return torch.is_grad_enabled()


class ModuleTarget(Target):
    """An ``nn.Module``, patched in place."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.name = type(module).__name__
        self.eager = modules.eager_call(module)
        self._is_initialized = False

    def trains_now(self) -> bool:
        if not self._is_initialized:  # lazy modules get their parameters in their first call
            self._is_initialized = not any(map(is_lazy, module_tensors(self.module)))
        return self._is_initialized and super().trains_now()

    def install(self, entry: UserCall, owner: object) -> None:
        setattr(entry, _MARK, owner)
        modules.set_entry(self.module, entry)

    def uninstall(self) -> None:
        modules.drop_entry(self.module)

    def parameters(self) -> Iterable[torch.Tensor]:
        return self.module.parameters()

    def tensors(self) -> Iterable[torch.Tensor]:
        return module_tensors(self.module)


class ShardedTarget(ModuleTarget):
    """A module with units of `fully_shard`. Each unit that calls no other unit is captured on its own. Its forward is
    replaced in the instance's dictionary, so that FSDP's hooks stay outside of the compiled code. All other code of the
    module runs as it is.

    An activation checkpoint may call a unit again in the backward. The unit then runs as it did in the forward, even if
    it was switched in between, because the saved tensors must match. So an entry stays in the unit's dictionary after
    it was switched off, and removes itself at the next call outside of a backward.
    """

    has_parts = True
    runs_once = "the parameters of its units have memory only while FSDP runs them"

    def __init__(self, module: nn.Module, units: Mapping[str, nn.Module]) -> None:
        super().__init__(module)
        self.sharding = Sharding.of(module, units)
        self.units: dict[str, str | None] = {name: _why_left(unit, units) for name, unit in units.items()}
        """{unit's name: why it must not be captured, or None}."""
        self._captured = {name: units[name] for name, why in self.units.items() if why is None}
        self._own: dict[str, Any] = {}  # {unit: the user's own replacement of its forward, or None}
        self._entries: dict[str, UserCall] = {}
        self._is_on = False
        self._thread: int | None = None  # the thread whose calls run captured units
        self._ran_captured: dict[str, bool] = {}  # {unit: whether its latest call with gradients ran captured}
        self._num_calls = 0
        self._is_recomputed = False
        self._owner: object = None

    def install(self, entry: UserCall, owner: object) -> None:
        super().install(entry, owner)
        self._owner = owner  # keeps the units' runners alive: a backward may need them after `uninstall`

    def eager_entry(self) -> UserCall:
        self._thread = None
        return super().eager_entry()

    def captured(self, capture: Capturing) -> UserCall:
        eager = self.eager
        for name, unit in self._captured.items():
            self._own[name] = vars(unit).get("forward")
            self._entries[name] = self._unit_entry(name, unit.forward, capture(unit.forward, name))

        def run_captured(*args: Any, **kwargs: Any) -> object:
            self._thread = threading.get_ident()
            self._num_calls += 1
            return eager(*args, **kwargs)

        return run_captured

    def switch_parts(self, *, captured: bool) -> None:
        self._is_on = captured
        for name, entry in list(self._entries.items()) if captured else ():
            attributes = vars(self._captured[name])
            if attributes.get("forward") is self._own[name]:
                attributes["forward"] = entry
            elif attributes.get("forward") is not entry:
                self.units[name] = "its forward was replaced after agspeed.optimize"
                del self._entries[name]

    def uninstall(self) -> None:
        super().uninstall()
        self._is_on = False
        if not self._is_recomputed and self._num_calls != 1:  # after one call it is unknown if backwards call units
            for name, entry in self._entries.items():
                self._take_out(name, entry)

    def tensors(self) -> Iterable[torch.Tensor]:
        return local_parts(super().tensors())

    def _take_out(self, name: str, entry: UserCall) -> None:
        attributes = vars(self._captured[name])
        if attributes.get("forward") is entry:
            del attributes["forward"]
            if self._own[name] is not None:
                attributes["forward"] = self._own[name]

    def _unit_entry(self, name: str, eager: UserCall, compiled: UserCall) -> UserCall:
        unit = self._captured[name]

        @functools.wraps(eager)
        def forward(*args: Any, **kwargs: Any) -> object:
            if is_traced():
                return eager(*args, **kwargs)
            runs_captured = self._is_on and self._thread == threading.get_ident() and name in self._entries
            if current_backward() >= 0:  # a recomputation within a backward
                self._is_recomputed = True
                runs_captured = self._ran_captured.get(name, runs_captured)
            else:
                if not self._is_on:
                    self._take_out(name, forward)
                runs_captured = runs_captured and is_gathered_again(unit)
                if torch.is_grad_enabled():
                    self._ran_captured[name] = runs_captured
                else:  # an evaluation, or a reentrant checkpoint
                    self._ran_captured.pop(name, None)
            if runs_captured and torch.is_grad_enabled():
                return compiled(*args, **kwargs)
            return eager(*args, **kwargs)

        return forward


class UnclearTarget(ModuleTarget):
    """A module with units of `fully_shard` that runs eagerly, whether or not its parameters are gathered at present."""

    def __init__(self, module: nn.Module, units: Mapping[str, nn.Module]) -> None:
        super().__init__(module)
        self._units = units

    def tensors(self) -> Iterable[torch.Tensor]:
        return itertools.chain(super().tensors(), sharded_parameters(self._units))


class FunctionTarget(Target):
    """A step function. `optimize` returns `wrapper` to the user."""

    runs_once = "a step function changes the parameters"

    def __init__(self, function: UserCall) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self.eager = function
        self._entry = function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> object:
            return self._entry(*args, **kwargs)

        self.wrapper = call

    def install(self, entry: UserCall, owner: object) -> None:
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
    """Graphs that torch.compile captured and calls. Nothing is installed. Its parameters are the graphs' inputs."""

    name = "torch.compile"
    has_untouched_eager = False

    def __init__(self) -> None:
        self.eager = _not_callable
        self._parameters: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

    def install(self, entry: UserCall, owner: object) -> None:
        """Does nothing: torch.compile's own code calls the regions."""

    def uninstall(self) -> None:
        """Does nothing: the regions stay as they are until torch.compile drops them."""

    def remember(self, args: Sequence[Any]) -> None:
        """Notes the parameters among a region's arguments."""
        for value in args:
            if isinstance(value, nn.Parameter):
                self._parameters[id(value)] = value

    def parameters(self) -> Iterable[torch.Tensor]:
        return list(self._parameters.values())


def _not_callable(*args: Any, **kwargs: Any) -> object:
    raise AssertionError("a torch.compile session has no callable of its own")


def _why_left(unit: nn.Module, units: Mapping[str, nn.Module]) -> str | None:
    if calls_others(unit, units):
        return "it calls other units"
    if modules.entry(unit) is not None or is_compiled_function(unit.forward):
        return "it is compiled already"
    return None if is_gathered_again(unit) else "its parameters are not gathered for its backward"


def target_of(module: nn.Module) -> ModuleTarget:
    """Returns the target for a module."""
    units = units_of(module)
    if not units:
        return ModuleTarget(module)
    return ShardedTarget(module, units) if are_clear(module, units) else UnclearTarget(module, units)


def owner_of(target: object) -> object:
    """Returns the owner of the entry that replaces a module or step function (a session), or None."""
    holder = modules.entry(target) if isinstance(target, nn.Module) else target
    return getattr(holder, _MARK, None)
