# SPDX-License-Identifier: Apache-2.0
"""Memory on devices: functions for CUDA graphs, and statistics.

Without this part, the candidates that run as one CUDA graph are lost. All needs exist since torch 2.11. Stateless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch import Tensor
    from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["StorageWeakRef"]

PART = Part(
    "memory",
    __name__,
    exports=("torch.multiprocessing.reductions.StorageWeakRef",),
    needs=("torch._C._accelerator_getDeviceStats", "torch._C._to_dlpack"),
    lost="the candidates cudagraph and inductor-cudagraphs are lost",
)
if not TYPE_CHECKING:
    __getattr__ = PART.load


def with_own_storage(tensor: Tensor) -> Tensor:
    """Returns a tensor with the same memory and a storage object of its own."""
    import torch
    from torch.utils import dlpack

    return dlpack.from_dlpack(torch._C._to_dlpack(tensor.detach()))


def device_stats(index: int) -> dict[str, Any]:
    """The statistics of an accelerator's allocator: nested dictionaries.

    Raises: RuntimeError if the allocator keeps no statistics.
    """
    import torch

    return torch._C._accelerator_getDeviceStats(index)
