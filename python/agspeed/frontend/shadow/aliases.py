# SPDX-License-Identifier: Apache-2.0
"""Makes stand-ins for the inputs of regions in a run beside the real one, so that its gradients do not reach the user's
tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from agspeed.frontend.shadow.memory import Memory
from agspeed.torch_compat.autograd import number_of, sequence_number
from agspeed.torch_compat.modules import storage_of

Key = Any
"""Identifies a tensor that gets a gradient: the id of a leaf, or (its node, the number of the node's output)."""

_LOW = (torch.bfloat16, torch.float16)
_HUGE = 1e30
"""Larger values count as infinity."""


class Aliases:
    """Replaces each tensor that requires grad and comes from outside the run by one leaf with the same values. So hooks
    on the user's parameters, and wrappers that reduce gradients, do not notice the run's backward. Tensors that a
    region may change in place are copied, so that the real run's backward does not find them changed.

    Args:
        memory: tensors that are restored after the run.
        is_noisy: change the last bits of values that require grad, at random.
    """

    def __init__(self, memory: Memory, is_noisy: bool = False) -> None:
        self.first = sequence_number()
        self._memory, self._is_noisy = memory, is_noisy
        self._copies: dict[int, torch.Tensor] = {}
        self._leaves: dict[Key, torch.Tensor] = {}
        self._keys: dict[int, Key] = {}
        self._random = torch.Generator().manual_seed(0)

    def of(self, args: Sequence[Any], changed: Collection[int] | None) -> list[object]:
        """Returns a region's inputs, with stand-ins where needed. changed: positions of the inputs that the region
        changes in place; None: they are not known yet."""
        return [
            self._alias(arg, changed is None or place in changed) if isinstance(arg, torch.Tensor) else arg
            for place, arg in enumerate(args)
        ]

    def write_back(self, args: Sequence[Any], given: Sequence[Any], changed: Collection[int]) -> bool:
        """Copies a region's in-place changes from the stand-ins to the real inputs, for the code after the region.
        Autograd's version counters do not change. Returns: whether all changes can be undone; if not, some were not
        written."""
        for place in changed:
            if given[place] is args[place]:
                continue
            if args[place] not in self._memory:
                return False
            args[place].data.copy_(given[place].data)
        return True

    def key(self, variable: torch.Tensor) -> Key:
        """Returns the key of the tensor that a leaf replaces; the leaf's own key if it is not a stand-in."""
        return self._keys.get(id(variable), id(variable))

    def _alias(self, tensor: torch.Tensor, may_change: bool) -> torch.Tensor:
        node = tensor.grad_fn
        if node is not None and number_of(node) >= self.first:
            return tensor  # an earlier region of the same run made it
        if not tensor.requires_grad:
            return self._copy(tensor) if may_change or tensor in self._memory else tensor
        key = id(tensor) if node is None else (node, tensor.output_nr)
        if key not in self._leaves:
            values = tensor.detach().clone() if may_change else tensor.detach()
            leaf = (self._moved(values) if self._is_noisy else values).requires_grad_()
            self._leaves[key], self._keys[id(leaf)] = leaf, key
        leaf = self._leaves[key]
        return leaf if node is None else leaf.clone()  # a non-leaf may be changed in place

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = tensor.detach().clone()
        return self._copies[id(tensor)]

    def _moved(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values with other last bits: in every element, or in 16-bit types, in which they matter more, in one
        of sixteen."""
        if not values.is_floating_point():
            return values
        draws = torch.rand(values.shape, generator=self._random).to(values.device)
        share = (draws < 1 / 16).double() if values.dtype in _LOW else 4 * draws.double() - 2
        share = share.where(values.abs() < _HUGE, 0.0)
        return (values * (1 + torch.finfo(values.dtype).eps * share)).to(values.dtype)


def share_memory(args: Sequence[Any]) -> bool:
    """Returns whether two different tensors among a region's inputs share memory. Their copies would not share it."""
    tensors = {id(arg): arg for arg in args if isinstance(arg, torch.Tensor) and arg.layout is torch.strided}
    return len({storage_of(tensor) for tensor in tensors.values()}) < len(tensors)
