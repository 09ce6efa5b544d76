# SPDX-License-Identifier: Apache-2.0
"""Random float32 values and sums of them in a fixed order."""

from __future__ import annotations

import numpy
import torch

LANES = 16
EPS = torch.finfo(torch.float32).eps


def draw(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def in_order(x: torch.Tensor) -> torch.Tensor:
    """Returns float32 sums of the columns, by one addition after another."""
    return torch.from_numpy(numpy.add.accumulate(x.numpy(), axis=0, dtype=numpy.float32)[-1])
