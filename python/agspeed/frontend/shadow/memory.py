# SPDX-License-Identifier: Apache-2.0
"""Copies the tensors that a forward may change in place: buffers, tensors in attributes, and inputs.

Parameters are not copied. A fingerprint of each one shows whether a forward has changed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from agspeed.errors import UnsupportedError
from agspeed.torch_compat.autograd import set_version
from agspeed.torch_compat.modules import version_of

_MOST_BYTES = 1 << 30

Changes = Mapping[int, torch.Tensor]
"""{id of a tensor that has changed: its copy}."""


class Memory:
    """Copies of the given tensors.

    Args:
        tensors: (where it was found, tensor) pairs; a tensor may appear more than once.

    Raises: UnsupportedError if they are too large to copy.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._before: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
        self._parameters: dict[int, tuple[torch.Tensor, tuple[int, int, torch.Tensor]]] = {}
        num_bytes = 0
        for name, tensor in tensors:
            if isinstance(tensor, torch.nn.Parameter) and _is_plain(tensor):
                self._parameters[id(tensor)] = (tensor, _print_of(tensor))
            elif id(tensor) not in self._before and _is_plain(tensor):
                num_bytes += tensor.nbytes
                if num_bytes > _MOST_BYTES:
                    raise UnsupportedError(f"its inputs and buffers have more than {_MOST_BYTES >> 30} GiB")
                self._before[id(tensor)] = (name, tensor, tensor.detach().clone())

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (tensor for tensor, _ in self._parameters.values())
        yield from (tensor for _, tensor, _ in self._before.values())

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._before

    def name(self, identity: int) -> str:
        """Returns where the tensor with that id was found."""
        return self._before[identity][0]

    def has_changed_parameters(self) -> bool:
        """Returns whether a parameter has other values or other memory than at the beginning."""
        return any(not _is_same(_print_of(tensor), before) for tensor, before in self._parameters.values())

    def changes(self) -> Changes:
        """Returns copies of the tensors that have changed since the beginning."""
        kept = self._before.items()
        return {identity: tensor.detach().clone() for identity, (_, tensor, copy) in kept if not _holds(tensor, copy)}

    def versions(self) -> dict[int, int]:
        """Returns each tensor's version counter, by id."""
        return {identity: version_of(tensor) for identity, (_, tensor, _) in self._before.items()}

    def write(self, changes: Changes, versions: Mapping[int, int]) -> None:
        """Restores the tensors to the beginning, with `changes` applied. Sets their version counters to `versions`."""
        for identity, (_, tensor, copy) in self._before.items():
            value = changes.get(identity, copy)
            if not _holds(tensor, value):
                tensor.data.copy_(value)
            if version_of(tensor) != versions[identity]:
                set_version(tensor, versions[identity])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor's memory can be read and written like ordinary dense memory."""
    is_known = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not is_known or tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_inference():
        return False
    return all(stride > 0 or size < 2 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _holds(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    return tensor.shape == value.shape and torch.equal(tensor, value)


def _print_of(parameter: torch.Tensor) -> tuple[int, int, torch.Tensor]:
    return version_of(parameter), parameter.data_ptr(), parameter.detach().sum()


def _is_same(own: tuple[int, int, torch.Tensor], other: tuple[int, int, torch.Tensor]) -> bool:
    return own[:2] == other[:2] and torch.equal(own[2].nan_to_num(), other[2].nan_to_num())
