# SPDX-License-Identifier: Apache-2.0
"""Gradients that are zero but for cancellation: noise of another summation order passes, anything above it does not."""

from __future__ import annotations

import torch

from agspeed.tuning.gate_compare import FACTOR_BELOW_NOISE, compare

SIZE = 256


def judged(factor: float, *, level: float) -> bool:
    """Whether a tensor passes whose error is `factor` times eager's, where the reference has size `level`."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(SIZE, generator=generator, dtype=torch.float64) * 1e-8
    reference = torch.randn(SIZE, generator=generator, dtype=torch.float64) * level
    return compare("t", (reference + factor * noise).float(), (reference + noise).float(), reference).ok


def test_noise_around_zero_depends_on_the_order_of_summation_only() -> None:
    assert judged(0.5 * FACTOR_BELOW_NOISE, level=1e-17)


def test_more_than_noise_around_zero_is_rejected() -> None:
    assert not judged(2 * FACTOR_BELOW_NOISE, level=1e-17)


def test_a_tensor_above_the_noise_keeps_the_strict_rule() -> None:
    assert not judged(0.5 * FACTOR_BELOW_NOISE, level=1e-7)
