# SPDX-License-Identifier: Apache-2.0
"""Detects the beginning of each backward that reduces the gradients of a wrapper.

`rank_group.py` says what a wrapper is. All ranks reach such a backward in the same step, whatever else they do, and
they wait for each other there anyway. Forwards without a backward, gradients for inputs alone, and evaluations or
samples that one rank draws alone do not count.

Threads: the training thread only, except for the hooks of tensors. The hooks run on the backward's thread, while the
training thread waits for the backward.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.hooks import RemovableHandle

from agspeed.distributed.rank_group import RankGroup
from agspeed.torch_compat import autograd, ddp


class Backwards(ABC):
    """Calls `on_backward` when such a backward begins, before any gradient leaves.

    Hooks of the wrapper own this object while it listens. All ranks create it in the same step, within a training
    forward, and the first backward that it reports is the next step's. One rank may run several forwards in the step
    of the creation. So a backward is ignored if the group has begun no collective since the creation.
    """

    def __init__(self, group: RankGroup, called: nn.Module) -> None:
        """called: the module whose calls are the wrapper's forwards."""
        self._group = group
        self._called = weakref.ref(called)
        self._thread = threading.get_ident()
        self._num_forwards = self._latest = 0  # training forwards; the number of the one whose backward began last
        self._task = -1  # autograd's number of that backward
        self._gradients = group.gradient_nodes()
        self._hooks: list[RemovableHandle] = []
        self._is_within = False  # whether a forward has begun since the hooks were registered
        try:
            self._num_before: int | None = group.num_collectives()
        except RuntimeError:  # a backend that does not count them
            self._num_before = None

    @abstractmethod
    def on_backward(self) -> None:
        """Called when a backward that reduces gradients begins."""

    def before_forward(self, *_: Any) -> None:
        """Called when a forward of the wrapper begins, in training or not."""
        self._is_within = True

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """Called after the wrapper's forward. Registers hooks on the output that report when its backward begins."""
        # torch calls a hook that was registered during a forward after that same forward, if the module has others.
        if not self._is_within or not self._is_training() or not self._group.will_reduce():
            return
        self._num_forwards += 1
        number = self._num_forwards
        if isinstance(output, torch.Tensor):  # the usual case, kept cheap because untuned steps run it too
            if output.requires_grad:
                output.register_hook(lambda _: self._backward_begins(number))
        elif tensors := [leaf for leaf in ddp.tensors_in(output) if leaf.requires_grad]:
            register_multi_grad_hook(tensors, lambda _: self._backward_begins(number), mode="any")

    def _listen(self) -> None:
        """Registers the hooks; they take effect with the next forward."""
        called = self._called()
        self._is_within = False
        if called is not None:
            self._hooks = [
                called.register_forward_pre_hook(_Hook(self, "before_forward"), prepend=True),  # before replicate()'s
                called.register_forward_hook(_Hook(self, "after_forward")),
            ]

    def _stop_listening(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _is_training(self) -> bool:
        """Whether the current forward trains, so that all ranks run it. Only evaluations run at one rank alone."""
        return torch.is_grad_enabled() and threading.get_ident() == self._thread

    def _backward_begins(self, forward: int) -> None:
        task = autograd.current_backward()
        if forward <= self._latest or task == self._task or not self._hooks or not self._group.reduces(self._gradients):
            return
        self._latest, self._task = forward, task
        if self._num_before is not None and self._group.num_collectives() == self._num_before:
            return
        self._num_before = None
        self.on_backward()


class _Hook:
    """Calls a method of its listener. In a copy of the wrapper, in memory or in a file, the hook does nothing."""

    def __init__(self, listener: Backwards, method: str) -> None:
        self._call = getattr(listener, method)

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _no_hook, ()


def _no_hook() -> Callable[..., None]:
    return _nothing


def _nothing(*_: Any) -> None:
    pass
