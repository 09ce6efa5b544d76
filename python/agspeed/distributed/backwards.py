# SPDX-License-Identifier: Apache-2.0
"""Detects the beginning of each backward that reduces the gradients of a wrapper.

A wrapper is a DistributedDataParallel, the DistributedDataParallel that `replicate()` attaches to a module, or the
units of `fully_shard`. All ranks reach such a backward in the same step, whatever else they do, and they wait for each
other there anyway. Forwards without a backward, gradients for inputs alone, and evaluations or samples that one rank
draws alone do not count.

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
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook

from agspeed.distributed.sharded import Sharding
from agspeed.torch_compat import autograd, c10d, ddp


class Backwards(ABC):
    """Calls `on_backward` when such a backward begins, before any gradient leaves.

    Hooks of the wrapper own this object while it listens. All ranks create it in the same step, within a training
    forward, and the first backward that it reports is the next step's. One rank may run several forwards in the step
    of the creation. So a backward is ignored if the group has begun no collective since the creation.
    """

    def __init__(self, wrapper: nn.parallel.DistributedDataParallel | Sharding, called: nn.Module) -> None:
        """called: the module whose calls are the wrapper's forwards."""
        is_sharding = isinstance(wrapper, Sharding)
        self._wrapper: Any = (lambda: wrapper) if is_sharding else weakref.ref(wrapper)  # a Sharding has no other owner
        self._called = weakref.ref(called)
        self._thread = threading.get_ident()
        self._num_forwards = self._latest = 0  # training forwards; the number of the one whose backward began last
        self._task = -1  # autograd's number of that backward
        reduced = () if is_sharding else wrapper.parameters()  # fully_shard communicates in every backward
        trained = (parameter for parameter in reduced if parameter.requires_grad)
        self._gradients = [get_gradient_edge(parameter).node for parameter in trained]  # the nodes that accumulate them
        self._hooks: list[Any] = []
        self._is_within = False  # whether a forward has begun since the hooks were registered
        self._group: Any = wrapper.process_group
        self._device = next(wrapper.parameters()).device
        try:
            self._num_before: int | None = self.num_collectives()
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
        wrapper = self._wrapper()
        # torch calls a hook that was registered during a forward after that same forward, if the module has others.
        if not self._is_within:
            return
        if wrapper is None or not self._is_training() or ddp.is_in_join(wrapper):
            return
        if not isinstance(wrapper, Sharding) and not wrapper.require_backward_grad_sync:
            return
        self._num_forwards += 1
        number = self._num_forwards
        if isinstance(output, torch.Tensor):  # the usual case, kept cheap because untuned steps run it too
            if output.requires_grad:
                output.register_hook(lambda _: self._backward_begins(number))  # type: ignore[no-untyped-call]
        elif tensors := [leaf for leaf in ddp.tensors_in(output) if leaf.requires_grad]:
            register_multi_grad_hook(tensors, lambda _: self._backward_begins(number), mode="any")

    def num_collectives(self) -> int:
        """How many collectives the group has begun. The ranks' counts are equal, unless only some ranks have exchanged
        messages. Raises: RuntimeError if the backend does not count collectives.
        """
        return c10d.num_collectives(self._group, self._device)

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
        if forward <= self._latest or task == self._task or not self._hooks or not self._reduces():
            return
        self._latest, self._task = forward, task
        if self._num_before is not None and self.num_collectives() == self._num_before:
            return
        self._num_before = None
        self.on_backward()

    def _reduces(self) -> bool:
        """Whether the current backward reduces gradients.

        `autograd.grad` for inputs reaches no parameters, so it reduces nothing. `fully_shard` reads whether to reduce
        only in the backward; DistributedDataParallel reads it before the forward.
        """
        if isinstance(sharding := self._wrapper(), Sharding):
            return sharding.require_backward_grad_sync
        return any(map(autograd.will_run, self._gradients))


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
