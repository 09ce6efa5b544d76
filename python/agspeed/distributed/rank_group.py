# SPDX-License-Identifier: Apache-2.0
"""RankGroup: the ranks that reduce gradients together, and the wrapper that reduces them.

The wrapper is a DistributedDataParallel, the DistributedDataParallel that `replicate()` attaches to a module, or the
units of `fully_shard` (`sharded.py`). A group answers questions about its wrapper, and holds no state of tuning.
Threads: the training thread, and the backward's thread while the training thread waits for it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from agspeed.distributed import groups
from agspeed.distributed.reducers import WrapperLayouts, why_left_alone
from agspeed.distributed.step_profile import StepProfile, latest_step
from agspeed.torch_compat import autograd, c10d, ddp


class RankGroup(ABC):
    """The ranks around one wrapper."""

    def __init__(self, process_group: Any) -> None:
        self.process_group = process_group
        self.rank = distributed.get_rank(process_group)
        self.size = distributed.get_world_size(process_group)
        self.num_sessions = 0
        """How many sessions have announced themselves to these ranks; the same number at all ranks."""

    @property
    def uses_device(self) -> bool:
        """Whether parameters are on another device than the CPU."""
        return any(parameter.device.type != "cpu" for parameter in self.parameters())

    @property
    def keeps_order(self) -> bool:
        """Whether a gradient's sum has the same bits with every bucket layout."""
        return self.size == 2 or groups.backend_of(self.process_group) == "agspeed"

    def num_collectives(self) -> int:
        """How many collectives the group has begun. The ranks' counts are equal, unless only some ranks have exchanged
        messages. Raises: RuntimeError if the backend does not count collectives.
        """
        return c10d.num_collectives(self.process_group, self.device)

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the first parameter."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether the wrapper still exists."""

    @abstractmethod
    def is_called(self) -> bool:
        """Whether this wrapper, and no other one, may be running its forward."""

    @abstractmethod
    def will_reduce(self) -> bool:
        """Whether the forward that has just ended may have a backward that reduces gradients."""

    @abstractmethod
    def reduces(self, gradients: Sequence[Node]) -> bool:
        """Whether the current backward reduces gradients. gradients: see `gradient_nodes`."""

    @abstractmethod
    def gradient_nodes(self) -> list[Node]:
        """The nodes that accumulate the gradients of which a backward reaches at least one if it reduces any."""

    @abstractmethod
    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters inside the wrapper."""

    @abstractmethod
    def reduced_parameters(self) -> Iterator[torch.Tensor]:
        """The parameters whose gradients are reduced."""

    @abstractmethod
    def option(self, name: str) -> object:
        """The wrapper's option of that name; None if it has none."""

    @abstractmethod
    def why_layouts_stay(self) -> str | None:
        """Why the bucket layout must not change, as a sentence; None if it may, and if there are no buckets."""

    @abstractmethod
    def layouts(self) -> WrapperLayouts | None:
        """The wrapper's bucket layouts; None if they must not change."""

    @abstractmethod
    def latest_step(self) -> StepProfile | None:
        """When the buckets of the latest timed step were full and reduced; None if no step was timed."""


class DataParallelGroup(RankGroup):
    """The ranks around a DistributedDataParallel. It does not keep the wrapper alive."""

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        super().__init__(wrapper.process_group)
        self._wrapper = weakref.ref(wrapper)
        self._device = next(wrapper.parameters()).device

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def is_alive(self) -> bool:
        return self._wrapper() is not None

    def is_called(self) -> bool:
        active = ddp.active()
        return active is None or active is self._wrapper()

    def will_reduce(self) -> bool:
        wrapper = self._wrapper()
        return wrapper is not None and ddp.will_reduce(wrapper)

    def reduces(self, gradients: Sequence[Node]) -> bool:
        """`autograd.grad` for inputs reaches no parameters, so it reduces nothing."""
        return any(map(autograd.will_run, gradients))

    def gradient_nodes(self) -> list[Node]:
        trained = (parameter for parameter in self.parameters() if parameter.requires_grad)
        return [get_gradient_edge(parameter).node for parameter in trained]

    def parameters(self) -> Iterator[nn.Parameter]:
        return self._alive().parameters()

    def reduced_parameters(self) -> Iterator[torch.Tensor]:
        yield from ddp.parameters_of(self._alive())[0]

    def option(self, name: str) -> object:
        return getattr(self._alive(), name, None)

    def why_layouts_stay(self) -> str | None:
        return why_left_alone(self._alive())

    def layouts(self) -> WrapperLayouts | None:
        wrapper = self._alive()
        return WrapperLayouts(wrapper) if why_left_alone(wrapper) is None else None

    def latest_step(self) -> StepProfile | None:
        wrapper = self._wrapper()
        return latest_step(wrapper) if wrapper is not None else None

    def _alive(self) -> DistributedDataParallel:
        wrapper = self._wrapper()
        assert wrapper is not None  # its forward or backward runs
        return wrapper


_groups: weakref.WeakKeyDictionary[nn.Module, DataParallelGroup] = weakref.WeakKeyDictionary()


def group_around(wrapper: DistributedDataParallel) -> DataParallelGroup:
    """Returns the group of a wrapper: the same one for the same process group."""
    found = _groups.get(wrapper)
    if found is None or found.process_group is not wrapper.process_group:
        found = _groups[wrapper] = DataParallelGroup(wrapper)
    return found
