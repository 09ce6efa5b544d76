# SPDX-License-Identifier: Apache-2.0
"""Exchanges between ranks that are dense: gradients during the warm-up, and values of rank 0.

Threading: the training thread. All ranks make the same calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import distributed

from agspeed.distributed.codecs.codec import Wire
from agspeed.errors import UserError

__all__ = ["average_gradients", "send_from_first"]


def average_gradients(parameters: Sequence[torch.Tensor], wire: Wire) -> None:
    """Replaces the gradients by their averages over the ranks. A missing gradient counts as zeros, and stays missing if
    all ranks lack it.

    Raises: UserError for a sparse gradient.
    """
    for alike in _by_type(parameters):
        gradients = [_gradient(parameter) for parameter in alike]
        is_there = [float(parameter.grad is not None) for parameter in alike]
        flat = torch.cat([*(each.reshape(-1) for each in gradients), gradients[0].new_tensor(is_there)])
        flat.mul_(1 / wire.size)  # DistributedDataParallel has the same bits
        wire.all_reduce(flat)()
        *averages, counts = flat.split([*(each.numel() for each in gradients), len(alike)])
        for parameter, gradient, average, count in zip(alike, gradients, averages, counts.tolist(), strict=True):
            if count:
                gradient.copy_(average.view_as(gradient))
                parameter.grad = gradient


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.is_sparse:
        raise UserError(
            f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which the warm-up of local_steps "
            "cannot average: make its layer with sparse=False, or pass warmup=0."
        )
    return gradient


def send_from_first(tensors: Iterable[torch.Tensor], group: Any) -> None:
    """Replaces tensors of all ranks by the first rank's."""
    for alike in _by_type(list(tensors)):
        flat = torch.cat([each.detach().reshape(-1) for each in alike])
        distributed.broadcast(flat, group=group, group_src=0)
        for own, part in zip(alike, flat.split([each.numel() for each in alike]), strict=True):
            own.copy_(part.view_as(own))


def _by_type(tensors: Sequence[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    found: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        found.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return found.values()
