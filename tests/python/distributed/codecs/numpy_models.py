# SPDX-License-Identifier: Apache-2.0
"""The codecs once more, in NumPy and without collectives."""

from __future__ import annotations

from typing import Any

import numpy as np

F32 = np.float32
Array = np.ndarray[Any, Any]

_BLOCK = 256
_LEAST = F32(127) * np.finfo(F32).tiny


def coded_int8(values: Array) -> list[tuple[np.float32, Array]]:
    """Returns scale and bytes of each block."""
    blocks = []
    for at in range(0, len(values), _BLOCK):
        block = values[at : at + _BLOCK]
        largest = np.abs(block).max()
        is_zero = largest < _LEAST
        scale, inverse = (F32(0), F32(0)) if is_zero else (largest / F32(127), F32(127) / largest)
        blocks.append((scale, np.rint(block * inverse).astype(np.int8)))
    return blocks


def decoded_int8(blocks: list[tuple[np.float32, Array]], factor: float = 1.0) -> Array:
    parts = [codes.astype(F32) * (scale * F32(factor)) for scale, codes in blocks]
    return np.concatenate(parts) if parts else np.zeros(0, F32)


def average_int8(gradients: list[Array]) -> Array:
    """Returns the average of the ranks' gradients, as all ranks decode it."""
    size, count = len(gradients), len(gradients[0])
    length = -(-count // (size * _BLOCK)) * _BLOCK
    found = []
    for owner in range(size):
        parts = [gradient[owner * length : (owner + 1) * length] for gradient in gradients]
        total = np.zeros(len(parts[0]), F32)
        for part in parts:
            total = total + decoded_int8(coded_int8(part), 1 / size)
        found.append(decoded_int8(coded_int8(total)))
    return np.concatenate(found)


class TopK:
    """All ranks' residuals and velocities of one bucket."""

    def __init__(self, size: int, count: int, density: float, momentum: float, warmup_steps: int) -> None:
        self.density, self.momentum, self.warmup_steps = density, F32(momentum), warmup_steps
        self.residuals = [np.zeros(count, F32) for _ in range(size)]
        self.velocities = [np.zeros(count, F32) for _ in range(size)]
        self.num_steps = 0

    def average(self, gradients: list[Array]) -> Array:
        size, count = len(gradients), len(gradients[0])
        for rank, gradient in enumerate(gradients):
            self.velocities[rank] = gradient + self.momentum * self.velocities[rank]
            self.residuals[rank] = self.velocities[rank] + self.residuals[rank]
        density = self.density
        if self.num_steps < self.warmup_steps:
            density = self.density ** (self.num_steps / self.warmup_steps)
        self.num_steps += 1
        is_dense = density > 0.5
        pattern = np.arange(count)
        if not is_dense:
            each = -(-max(int(density * count), 1) // size)
            largest = [np.argsort(-np.abs(residual), kind="stable")[:each] for residual in self.residuals]
            pattern = np.unique(np.concatenate(largest))
        result = np.zeros(count, F32)
        for residual, velocity in zip(self.residuals, self.velocities, strict=True):
            result[pattern] += residual[pattern] / F32(size)
            residual[pattern] = 0
            if not is_dense:
                velocity[pattern] = 0
        return result
