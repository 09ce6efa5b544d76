# SPDX-License-Identifier: Apache-2.0
"""Copies of the tensors that a forward may change in place: buffers, tensors that attributes hold, and inputs.

Parameters have none: a forward that changes them is found by the gradients, or by a second run of the module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from agspeed.errors import UnsupportedError

_MOST_BYTES = 1 << 30


class Memory:
    """See the module's text.

    Args:
        tensors: with where each was found; one may come more than once.

    Raises: UnsupportedError where they have more memory than is worth a copy.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._before: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
        num_bytes = 0
        for name, tensor in tensors:
            if id(tensor) in self._before or not _is_kept(tensor):
                continue
            num_bytes += tensor.nbytes
            if num_bytes > _MOST_BYTES:
                raise UnsupportedError(f"its inputs and buffers have more than {_MOST_BYTES >> 30} GiB")
            self._before[id(tensor)] = (name, tensor, tensor.detach().clone())

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (tensor for _, tensor, _ in self._before.values())

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._before

    def changes(self) -> dict[str, torch.Tensor]:
        """Copies of those that have changed since, by where they were found."""
        kept = self._before.values()
        return {name: tensor.detach().clone() for name, tensor, copy in kept if not torch.equal(tensor, copy)}

    def write(self, changes: Mapping[str, torch.Tensor]) -> None:
        """The tensors are as at first, but for `changes`. Autograd does not count this as a change."""
        for name, tensor, copy in self._before.values():
            value = changes.get(name, copy)
            if not torch.equal(tensor, value):
                tensor.data.copy_(value)


def _is_kept(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout is torch.strided and tensor.device.type != "meta" and not tensor.is_inference()
    return is_plain and not isinstance(tensor, torch.nn.Parameter)
