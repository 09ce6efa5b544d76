# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the inputs of regions in a run beside the real one: its gradients must not reach the user's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from agspeed.frontend.shadow.memory import Memory
from agspeed.torch_compat.autograd import number_of, sequence_number
from agspeed.torch_compat.modules import storage_of

Key = Any
"""Names a tensor that a gradient is for: the id of a leaf, or its node and the number of the node's output."""


class Aliases:
    """Gives each tensor that requires grad, and comes from outside of the run, one leaf of the same values. So hooks on
    the user's parameters, and wrappers that reduce gradients, see nothing of the run's backward. Tensors of `memory`
    have copies, so that the real run's backward does not find them changed.

    Args:
        noise: values differ from the originals' by that share of the type's precision, at random.
    """

    def __init__(self, memory: Memory, noise: float = 0.0) -> None:
        self.first = sequence_number()
        self._memory = memory
        self._noise = noise
        self._copies: dict[int, torch.Tensor] = {}
        self._leaves: dict[Key, torch.Tensor] = {}
        self._keys: dict[int, Key] = {}
        self._random = torch.Generator().manual_seed(0)

    def of(self, args: Sequence[Any]) -> list[Any]:
        """A region's inputs, with stand-ins among them."""
        return [self._alias(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]

    def key(self, variable: torch.Tensor) -> Key:
        """Of a leaf: the key of what it stands for, or its own."""
        return self._keys.get(id(variable), id(variable))

    def _alias(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return self._copy(tensor)
        node = tensor.grad_fn
        if node is not None and number_of(node) >= self.first:
            return tensor  # an earlier region of the same run made it
        key = id(tensor) if node is None else (node, tensor.output_nr)
        if key not in self._leaves:
            leaf = self._moved(tensor.detach()).requires_grad_()
            self._leaves[key], self._keys[id(leaf)] = leaf, key
        leaf = self._leaves[key]
        return leaf if node is None else leaf.clone()  # what is no leaf may be changed in place

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in self._memory:
            return tensor
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = self._moved(tensor.detach().clone())
        return self._copies[id(tensor)]

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._noise or not tensor.is_floating_point():
            return tensor
        step = self._noise * torch.finfo(tensor.dtype).eps
        signs = torch.rand(tensor.shape, generator=self._random).to(tensor.device) * 2 - 1
        return (tensor * (1 + step * signs.double())).to(tensor.dtype)


def share_memory(args: Sequence[Any]) -> bool:
    """Whether two different tensors among a region's inputs share memory: their copies would not."""
    tensors = {id(arg): arg for arg in args if isinstance(arg, torch.Tensor) and arg.layout is torch.strided}
    return len({storage_of(tensor) for tensor in tensors.values()}) < len(tensors)


def write_back(args: Sequence[Any], given: Sequence[Any], places: Iterable[int]) -> None:
    """Code behind a region sees what the region changed in the inputs at `places`. Autograd does not count it."""
    for place in places:
        if given[place] is not args[place]:
            args[place].data.copy_(given[place].data)
