# SPDX-License-Identifier: Apache-2.0
"""Finds differences between the results of the user's module and of its captured graph for the same input.

Equal operators in an equal order give equal bits. If a graph computes the same value in another way (a library asks
whether it is being compiled), rounding differs. The size of this effect is measured with inputs whose last bits differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agspeed.torch_compat.modes import tree_flatten

_ABOVE_NOISE = 8.0
"""A difference counts if it is larger than this many times the measured noise."""
_MOST = {torch.bfloat16: 3e-2, torch.float16: 1e-2, torch.float64: 1e-6}
"""A larger difference counts with any noise; the limit is 1e-3 in other types."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class Difference:
    """One result that differs."""

    what: str
    how: str | None = None
    """A difference that rounding cannot explain, as the rest of a sentence; None: the values differ by `size`."""
    size: float = 0.0
    """The difference relative to the largest element, if `how` is None."""
    limit: float = 0.0
    """The largest size that noise may explain."""

    def __str__(self) -> str:
        return f"{self.what} {self.how or f'differs by {self.size:.2g} of its largest element'}"


def leaves_of(output: object) -> list[object]:
    """Returns the values in a nested structure, and in attributes of objects that torch's pytrees do not know."""
    found: list[object] = []
    for leaf in tree_flatten(output)[0]:
        is_opened = not isinstance(leaf, (torch.Tensor, torch.nn.Module, type, *_PLAIN)) and hasattr(leaf, "__dict__")
        found += leaves_of(list(vars(leaf).values())) if is_opened and vars(leaf) else [leaf]
    return found


def of_outputs(own: object, others: object) -> list[Difference]:
    """Returns the differences between the results of two calls: nested structures of tensors and plain values."""
    own_leaves, leaves = leaves_of(own), leaves_of(others)
    if tree_flatten(own)[1] != tree_flatten(others)[1] or len(own_leaves) != len(leaves):
        return [Difference("the output", "has another structure")]
    found = []
    for index, (value, other) in enumerate(zip(own_leaves, leaves, strict=True)):
        name = f"output {index}" if len(leaves) > 1 else "the output"
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
            if value.requires_grad != other.requires_grad:
                found.append(Difference(name, "requires grad on one side alone"))
            found += of_tensors(name, value, other)
        elif type(value) is not type(other) or (isinstance(value, _PLAIN) and value != other and value == value):
            found.append(Difference(name, f"is {value!r:.40} and {other!r:.40}"))
    return found


def of_tensors(name: str, own: torch.Tensor | None, other: torch.Tensor | None) -> list[Difference]:
    """Returns the differences between two tensors or gradients. A missing gradient equals one of zeros."""
    own, other = _plain(own), _plain(other)
    if own is None or other is None:
        present = own if own is not None else other
        is_zero = present is None or not bool(present.count_nonzero())
        return [] if is_zero else [Difference(name, "is missing on one side")]
    if own.shape != other.shape or own.dtype != other.dtype:
        there = f"{own.dtype} {tuple(own.shape)} and {other.dtype} {tuple(other.shape)}"
        return [Difference(name, f"is {there}")]
    if own.numel() == 0 or torch.equal(own, other):
        return []
    limit = _MOST.get(own.dtype, 1e-3)
    own, other = (v.double() if not v.is_complex() else torch.view_as_real(v).double() for v in (own, other))
    if not torch.equal(own.isfinite(), other.isfinite()):
        return [Difference(name, "is not finite in other places")]
    own, other = own.nan_to_num(0.0, 0.0, 0.0), other.nan_to_num(0.0, 0.0, 0.0)
    if bool(own.count_nonzero()) != bool(other.count_nonzero()):
        return [Difference(name, "is zero on one side alone")]
    size = float((own - other).abs().max()) / max(float(own.abs().max()), torch.finfo(torch.float64).tiny)
    return [Difference(name, size=size, limit=limit)] if size > 0.0 else []


def unexplained(found: list[Difference], noise: dict[str, float]) -> Difference | None:
    """Returns the first difference that rounding does not explain, or None. noise: {name: measured size}."""
    for difference in found:
        allowed = min(_ABOVE_NOISE * noise.get(difference.what, 0.0), difference.limit)
        if difference.how is not None or difference.size > allowed:
            return difference
    return None


def _plain(value: torch.Tensor | None) -> torch.Tensor | None:
    if value is None:
        return None
    value = value.detach()
    return value.to_dense() if value.layout is not torch.strided else value
