# SPDX-License-Identifier: Apache-2.0
"""Backwards that reduce the gradients of a wrapper (DistributedDataParallel, what `replicate()` leaves, the units of
`fully_shard`): what all ranks come to in the same step, whatever else they do.

Whoever comes there waits for the others in that backward anyway. A forward without a backward, a gradient for inputs
alone, an evaluation or a sample that one rank draws alone does not count. Training thread only, but for the hooks of
tensors, which run where the backward does, while that thread waits for it.
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
    """Hears when each of them begins, before any gradient leaves. It lives in hooks of the wrapper while it listens.

    Ranks make theirs in the same step, within a training forward, and hear of the next step's backward first. A rank
    may have run another forward before in that step: what begins without a collective since is left out, too.
    """

    def __init__(self, wrapper: nn.parallel.DistributedDataParallel | Sharding, called: nn.Module) -> None:
        """called: the module whose calls are the forwards within the wrapper."""
        is_sharding = isinstance(wrapper, Sharding)
        self._wrapper: Any = (lambda: wrapper) if is_sharding else weakref.ref(wrapper)  # nobody else keeps a sharding
        self._called = weakref.ref(called)
        self._thread = threading.get_ident()
        self._num_forwards = self._latest = 0  # training forwards; the one whose backward began last
        self._task = -1  # autograd's number of that backward
        reduced = () if is_sharding else wrapper.parameters()  # sharded: in any backward
        trained = (parameter for parameter in reduced if parameter.requires_grad)
        self._gradients = [get_gradient_edge(parameter).node for parameter in trained]  # where they are accumulated
        self._hooks: list[Any] = []
        self._is_within = False  # a training forward that was seen to begin
        self._group: Any = wrapper.process_group
        self._device = next(wrapper.parameters()).device
        try:
            self._num_before: int | None = self.num_collectives()
        except RuntimeError:  # a backend that does not count them
            self._num_before = None

    @abstractmethod
    def on_backward(self) -> None:
        """A backward that reduces begins."""

    def before_forward(self, *_: Any) -> None:
        """A forward within the wrapper begins, a training one or another."""
        self._is_within = True

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """The wrapper's forward is over; whatever its backward begins with tells of it."""
        wrapper = self._wrapper()
        if not self._is_within:  # it began before there were hooks, and is seen where others have hooks of their own
            return
        if wrapper is None or not self._is_training() or ddp.is_in_join(wrapper):
            return
        if not isinstance(wrapper, Sharding) and not wrapper.require_backward_grad_sync:
            return
        self._num_forwards += 1
        number = self._num_forwards
        if isinstance(output, torch.Tensor):  # the usual case, made cheap: untuned steps come here too
            if output.requires_grad:
                output.register_hook(lambda _: self._backward_begins(number))  # type: ignore[no-untyped-call]
        elif tensors := [leaf for leaf in ddp.tensors_in(output) if leaf.requires_grad]:
            register_multi_grad_hook(tensors, lambda _: self._backward_begins(number), mode="any")

    def num_collectives(self) -> int:
        """How many the group has begun, which all ranks count alike but for messages of few. Raises: RuntimeError for a
        backend that does not count them.
        """
        return c10d.num_collectives(self._group, self._device)

    def _listen(self) -> None:
        """From the next forward on."""
        called = self._called()
        self._is_within = False
        if called is not None:
            self._hooks = [
                called.register_forward_pre_hook(_Hook(self, "before_forward"), prepend=True),  # of replicate()'s own
                called.register_forward_hook(_Hook(self, "after_forward")),
            ]

    def _stop_listening(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _is_training(self) -> bool:
        """Within a forward: all ranks do it. One without gradients may be that of one rank, which evaluates."""
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
        """Whether the backward under way reaches parameters: that of `autograd.grad` for inputs reduces nothing. Units
        of `fully_shard` are told of it as late as here, the wrapper before the forward.
        """
        if isinstance(sharding := self._wrapper(), Sharding):
            return sharding.require_backward_grad_sync
        return any(map(autograd.will_run, self._gradients))


class _Hook:
    """Calls a method of who listens. A copy of the wrapper, in memory or in a file, has none."""

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
