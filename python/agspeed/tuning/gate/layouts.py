# SPDX-License-Identifier: Apache-2.0
"""Copies outputs to eager's memory layout if a compiler chose another one.

Torch lets a compiler choose the strides of some results. A user can observe the strides of a region's outputs. So a
candidate whose outputs differ from eager's in their layout alone runs, and is timed, with copies that correct it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from agspeed.backends.base import Runner
from agspeed.tuning.gate.facts import Facts

Layouts = dict[int, list[int]]
"""{output index: the output's dimensions, from the slowest to the fastest in memory}."""


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


class LaidOut:
    """Runs a candidate and copies the given outputs to their layouts. Differentiable; one thread."""

    def __init__(self, runner: Runner, layouts: Layouts) -> None:
        self._runner, self.layouts = runner, layouts
        self.direct = None
        """Always None, even if the candidate has a direct call: every call must pass through this object."""

    def __call__(self, *args: Any) -> Sequence[Any]:
        outputs = list(self._runner(*args))
        for index, layout in self.layouts.items():
            outputs[index] = _laid_out(outputs[index], layout)
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def _laid_out(value: torch.Tensor, layout: Sequence[int]) -> torch.Tensor:
    inverse = sorted(range(len(layout)), key=layout.__getitem__)
    return value.permute(*layout).contiguous().permute(*inverse)


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
