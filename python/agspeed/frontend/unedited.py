# SPDX-License-Identifier: Apache-2.0
"""Optimizes models of scripts that do not call agspeed (AGSPEED_AUTO).

An optimizer shows which parameters train. The model is the outermost module that the script calls with gradients, if it
holds all parameters of an optimizer. It is found at the beginning of that call, which is then the first call of its
session. So the script trains as if it had passed the model to `optimize`. After three steps of an optimizer without
such a module, one warning says why its model is left alone.

A search lasts from the first optimizer until the model of each optimizer is found or given up. It reads the slot of all
modules (`torch_compat/modules.py`). After it, nothing is left behind, until the script makes another optimizer.

Threads: any thread may make optimizers and call modules. A forked process does not search for optimizers that its
parent has made.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from agspeed import config
from agspeed.frontend import api
from agspeed.frontend.live_sessions import live_sessions
from agspeed.frontend.steps import removed
from agspeed.frontend.target import ModuleTarget, UserCall
from agspeed.log import logger, warn_once
from agspeed.reporting.progress import Progress
from agspeed.torch_compat import dynamo, modules
from agspeed.torch_compat.autograd import current_backward
from agspeed.torch_compat.modes import is_watched

__all__ = ["SEARCH"]

_MOST_STEPS = 3
"""An optimizer is given up after this many of its steps. Loaders of checkpoints make one step before the first call."""
_MOST_CALLS = 1000
"""All optimizers are given up after this many outermost calls: they train other tensors, or do not step at all."""
_MOST_NAMES = 3


class _Sought:
    """One optimizer, and the modules that may be its model."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.parts: dict[str, None] = {}  # classes of outermost modules that hold some of its parameters, in call order


class _Place(threading.local):
    is_inside = False  # whether a module's call runs on this thread


class ModelSearch:
    """The process's search for the models of its optimizers."""

    def __init__(self) -> None:
        self._sought: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Sought] = weakref.WeakKeyDictionary()
        self._hooks: list[RemovableHandle] = []
        self._num_calls = 0
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self.end)

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Begins to search for the model of an optimizer."""
        with self._lock:
            self._sought[optimizer] = _Sought()
        self._num_calls = 0
        modules.set_reader_of_all(_entry_of)
        if not self._hooks:
            self._hooks = [register_optimizer_step_post_hook(torch.compiler.disable(self._stepped))]

    def end(self) -> None:
        """Forgets all optimizers."""
        self._sought.clear()
        self._end_if_idle()

    def called(self, module: nn.Module) -> None:
        """Optimizes a module that is being called as the outermost one, if it is a model. Does not raise."""
        try:
            if torch.is_grad_enabled() and not is_watched() and current_backward() < 0 and self._is_model(module):
                _optimize(module)
        except Exception as error:
            self.end()
            warn_once(("auto", "error"), f"AGSPEED_AUTO: models are left as they are: {error}")
            logger.debug("the search for models has ended", exc_info=True)

    def _is_model(self, module: nn.Module) -> bool:
        """Whether a module holds all parameters of an optimizer. Ends the search for such optimizers."""
        held = {id(parameter) for parameter in module.parameters()}
        found = []
        with self._lock:
            searches = list(self._sought.items())
        for optimizer, sought in searches:
            trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            if trained and trained <= held:
                found.append(optimizer)
            elif trained & held:
                sought.parts[type(api.unwrapped(module)).__name__] = None
        for optimizer in found:
            self._sought.pop(optimizer, None)
        self._num_calls += 1
        if self._num_calls >= _MOST_CALLS:
            self._sought.clear()
        self._end_if_idle()
        return bool(found)

    def _stepped(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        sought = self._sought.get(optimizer)
        if sought is not None:
            sought.num_steps += 1
            if sought.num_steps >= _MOST_STEPS:
                del self._sought[optimizer]
                _tell_why(optimizer, list(sought.parts))
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self._sought:
            modules.drop_reader_of_all()
            self._hooks = removed(self._hooks)


def _entry_of(module: nn.Module) -> UserCall | None:
    """Returns what calls of any module go to during a search."""
    if torch.compiler.is_compiling() or _place.is_inside or modules.is_traced() or _runs_another_method(module):
        own: UserCall | None = modules.entry(module)
        return own
    return functools.partial(_call_outermost, module)


def _call_outermost(module: nn.Module, /, *args: Any, **kwargs: Any) -> object:
    SEARCH.called(module)
    _place.is_inside = True
    try:
        return (modules.entry(module) or modules.eager_call(module))(*args, **kwargs)
    finally:
        _place.is_inside = False


def _runs_another_method(module: nn.Module) -> bool:
    """Whether Lightning has replaced the module's forward for one call, by its `training_step`. The model is then among
    the modules that this method calls."""
    forward = vars(api.unwrapped(module)).get("forward")
    return getattr(forward, "__qualname__", "").startswith("_ForwardRedirection.")


def _optimize(module: nn.Module) -> None:
    """Passes a model to `optimize`, unless the script itself has decided how it runs."""
    inner = api.unwrapped(module)
    if _is_decided(inner):
        logger.info("AGSPEED_AUTO: %s is left to the script, which compiles or optimizes it", type(inner).__name__)
        return
    api.optimize(module)
    if api.status(module) != "eager":
        Progress(enabled=config.resolve().progress).end(f"{type(inner).__name__} is optimized (AGSPEED_AUTO)")


def _is_decided(module: nn.Module) -> bool:
    """Whether the script has passed a module, a part of it, or a function to agspeed or torch.compile."""
    if any(not isinstance(session.target, ModuleTarget) for session in live_sessions()):
        return True
    return api.was_passed(module) or any(map(api.is_torch_compiled, module.modules()))


def _tell_why(optimizer: torch.optim.Optimizer, parts: list[str]) -> None:
    """Warns once that the model of an optimizer was not found. parts: modules that hold some of its parameters."""
    name = type(optimizer).__name__
    if not parts and (live_sessions() or dynamo.has_converted()):
        logger.info("AGSPEED_AUTO: no model of %s is called as a module", name)
        return
    if not parts:
        reason = f"no module that the script calls with gradients holds the parameters of {name}"
    elif len(parts) == 1:
        reason = f"{name} also trains parameters that are not in {parts[0]}, the module that the script calls"
    else:
        more = f" and {len(parts) - _MOST_NAMES} others" if len(parts) > _MOST_NAMES else ""
        reason = (
            f"{name} trains several modules that the script calls one by one: {', '.join(parts[:_MOST_NAMES])}{more}"
        )
    warn_once(
        ("auto", "unsure"),
        f"AGSPEED_AUTO: not sure which module is the model, so it is left as it is: {reason}. To make it faster, pass "
        "the module to agspeed.optimize in the script",
    )


_place = _Place()
SEARCH = ModelSearch()
