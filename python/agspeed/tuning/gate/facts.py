# SPDX-License-Identifier: Apache-2.0
"""Compares the properties of outputs other than their numbers, which must equal eager's. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from agspeed.regions.layouts import Layouts
from agspeed.tuning.gate.inputs import InputCopies


@dataclass(frozen=True)
class Facts:
    """An output's properties other than its numbers. ``alias`` names the input or earlier output that shares its
    memory."""

    kind: str
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    device: str = ""
    requires_grad: bool = False
    alias: str | None = None
    offset: int = 0


def facts_problem(mine: Sequence[Facts], theirs: Sequence[Facts]) -> str | None:
    """Returns the first difference between a candidate's outputs and eager's, as a sentence, or None."""
    if len(mine) != len(theirs):
        return f"it returns {len(mine)} outputs instead of {len(theirs)}"
    for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.kind != b.kind:
            return f"output {index} is {a.kind} instead of {b.kind}"
        for what in ("dtype", "shape", "stride", "device", "requires_grad"):
            if getattr(a, what) != getattr(b, what):
                return f"output {index} has {what} {getattr(a, what)} instead of {getattr(b, what)}"
        if (a.alias, a.offset) != (b.alias, b.offset):
            return f"output {index} shares memory with {_shown(a)} where eager's shares it with {_shown(b)}"
    return None


def gradient_problem(
    mine: Mapping[int, torch.Tensor | None], theirs: Mapping[int, torch.Tensor | None], *, zeros_for_none: bool
) -> str | None:
    """Returns the first difference in which inputs get gradients, and in the gradients' properties, as a sentence, or
    None.

    zeros_for_none: accept a gradient of zeros in place of no gradient. Compiled backward graphs write zeros for an
    input that affects only unused outputs.
    """
    for index, b in theirs.items():
        a = mine.get(index)
        if (a is None) != (b is None):
            if zeros_for_none and a is not None and not bool(a.any()):
                continue
            return f"the gradient of input {index} is {'missing' if a is None else 'there, eager has none'}"
        if a is None or b is None:
            continue
        for what in ("dtype", "shape", "device", "layout"):
            if getattr(a, what) != getattr(b, what):
                return f"the gradient of input {index} has {what} {getattr(a, what)} instead of {getattr(b, what)}"
    return None


def _shown(facts: Facts) -> str:
    return "nothing" if facts.alias is None else f"{facts.alias} at offset {facts.offset}"


def layouts_to_mend(mine: Sequence[Facts], theirs: Sequence[Facts]) -> Layouts:
    """Returns eager's layouts of the outputs that differ only in layout; {} if there is any other difference."""
    found: Layouts = {}
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a == b:
            continue
        layout = _layout(b) if a.alias is None else None
        if layout is None or replace(a, stride=b.stride) != b:
            return {}
        found[index] = layout
    return found if len(mine) == len(theirs) else {}


def facts_of(value: object, index: int, results: Sequence[object], copies: InputCopies) -> Facts:
    if not isinstance(value, torch.Tensor):
        return Facts(repr(value))
    alias, offset = _alias(value, index, results, copies)
    # The stride of a dimension with a single element has no effect.
    stride = tuple(s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1) if value.numel() else ()
    return Facts(
        "tensor", value.dtype, tuple(value.shape), stride, str(value.device), value.requires_grad, alias, offset
    )


def _alias(value: torch.Tensor, index: int, results: Sequence[object], copies: InputCopies) -> tuple[str | None, int]:
    pointer = value.untyped_storage().data_ptr()
    source = copies.storage_of(value)
    if source is not None:
        return f"input {source}", int(value.storage_offset() - copies.values[source].storage_offset())
    for earlier, other in enumerate(results[:index]):
        if pointer and isinstance(other, torch.Tensor) and other.untyped_storage().data_ptr() == pointer:
            return f"output {earlier}", int(value.storage_offset() - other.storage_offset())
    return None, 0


def _layout(facts: Facts) -> list[int] | None:
    """Returns the order of dimensions of a tensor without gaps or overlaps; None for other tensors."""
    strides: Mapping[int, int] = dict(zip((d for d, n in enumerate(facts.shape) if n > 1), facts.stride, strict=False))
    long = sorted(strides, key=lambda dim: -strides[dim])
    expected = 1
    for dim in reversed(long):
        if strides[dim] != expected:
            return None
        expected *= facts.shape[dim]
    return [*(dim for dim in range(len(facts.shape)) if dim not in strides), *long]
