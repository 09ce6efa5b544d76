# SPDX-License-Identifier: Apache-2.0
"""Copies outputs to eager's memory layout if a compiler chose another one.

Torch lets a compiler choose the strides of some results. A user can observe the strides of a region's outputs. So a
candidate whose outputs differ from eager's in their layout alone runs, and is timed, with copies that correct it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from agspeed.backends.base import Runner

Layouts = dict[int, list[int]]
"""{output index: the output's dimensions, from the slowest to the fastest in memory}."""


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
