# SPDX-License-Identifier: Apache-2.0
"""What the operations check of their arguments before anything starts, in Horovod's words."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "check_tensors", "name_of", "reduction_of"]

Average, Sum, Adasum, Min, Max, Product = range(6)

_NAMES = {Average: "Average", Sum: "Sum", Min: "Min", Max: "Max", Product: "Product"}
_REDUCED = {torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64}
_MOVED = {*_REDUCED, torch.uint8, torch.int8, torch.int16, torch.bool}


def reduction_of(op: int | None, average: bool | None) -> int:
    """One of the constants. Raises: ValueError where both are given."""
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        warnings.warn(
            "Parameter `average` has been replaced with `op` and will be removed: use op=hvd.Average or op=hvd.Sum.",
            DeprecationWarning,
            stacklevel=3,
        )
        return Average if average else Sum
    return Average if op is None else op


def name_of(op: int) -> str:
    """What the engine calls it. Raises: ValueError for what is no reduction of its own."""
    if op not in _NAMES:
        raise ValueError(f"op={op!r} is no reduction here: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product.")
    return _NAMES[op]


def check_tensors(tensors: Sequence[torch.Tensor], is_reduction: bool) -> None:
    """Raises: ValueError for tensors that cannot be sent."""
    for tensor in tensors:
        if tensor.dtype not in (_REDUCED if is_reduction else _MOVED):
            raise ValueError(f"Tensor type {tensor.type()} is not supported.")
        if not tensor.is_contiguous():
            raise ValueError("Tensor is required to be contiguous.")
