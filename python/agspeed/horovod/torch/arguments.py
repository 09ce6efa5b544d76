# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of operations before anything starts. Error texts are Horovod's."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "check_rows",
    "check_tensors",
    "name_of",
    "reduction_of",
    "rows_per_rank",
]

Average, Sum, Adasum, Min, Max, Product = range(6)

_NAMES = {Average: "Average", Sum: "Sum", Min: "Min", Max: "Max", Product: "Product"}
_REDUCED = {torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64}
_MOVED = {*_REDUCED, torch.uint8, torch.int8, torch.int16, torch.bool}


def reduction_of(op: int | None, average: bool | None) -> int:
    """Returns one of the constants. Raises: ValueError if both arguments are given."""
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
    """Returns the engine's name of a reduction. Raises: ValueError for a reduction that the engine does not have."""
    if op not in _NAMES:
        raise ValueError(
            f"op={op!r} is not a reduction here: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product."
        )
    return _NAMES[op]


def check_tensors(tensors: Sequence[torch.Tensor], is_reduction: bool) -> None:
    """Raises: ValueError for tensors that cannot be sent, or for an empty list; TypeError for anything but tensors."""
    if not tensors:
        raise ValueError("there is no tensor: a grouped operation needs at least one.")
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"a tensor is needed, not an object of type {type(tensor).__name__}.")
        if tensor.layout != torch.strided or tensor.dtype not in (_REDUCED if is_reduction else _MOVED):
            raise ValueError(f"Tensor type {tensor.type()} is not supported.")
        if not tensor.is_contiguous():
            raise ValueError("Tensor is required to be contiguous.")


def check_rows(operation: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises: ValueError for a tensor without dimensions."""
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(
            f"{operation} of a tensor of no dimensions, which has no rows to share out: call reshape(1) first."
        )


def rows_per_rank(splits: Any, num_rows: int, num_ranks: int) -> list[int]:
    """The number of rows that alltoall sends to each rank. If `splits` is None or empty, all ranks get equally many.

    Raises: ValueError unless splits are 32-bit integers, one for each rank, that add up to the rows.
    """
    given = torch.empty(0, dtype=torch.int32, device="cpu") if splits is None else splits
    if not isinstance(given, torch.Tensor):
        given = torch.tensor(given, dtype=torch.int32, device="cpu")
    if given.dtype != torch.int32:
        raise ValueError(f"alltoall expects splits to contain 32-bit integer elements, not {given.dtype}.")
    if given.dim() != 1:
        raise ValueError(f"alltoall expects a 1D splits tensor, not one of shape {tuple(given.shape)}.")
    rows: list[int] = given.tolist()
    if not rows:
        if num_rows % num_ranks:
            raise ValueError(
                f"alltoall of {num_rows} rows over {num_ranks} ranks needs splits: give rows for each rank."
            )
        return [num_rows // num_ranks] * num_ranks
    if len(rows) != num_ranks:
        raise ValueError(
            f"Number of entries in splits does not equal number of workers: {len(rows)} entries for {num_ranks} ranks."
        )
    if min(rows) < 0 or sum(rows) != num_rows:
        raise ValueError(f"splits {rows} do not add up to the {num_rows} rows of the tensor: give rows for each rank.")
    return rows
