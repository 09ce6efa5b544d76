# SPDX-License-Identifier: Apache-2.0
"""Comparisons of tensors without a tolerance."""

from __future__ import annotations

from typing import Any

import torch


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
