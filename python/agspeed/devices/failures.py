# SPDX-License-Identifier: Apache-2.0
"""Errors of a CUDA device after which no operator of the process works there: there is nothing to fall back to."""

from __future__ import annotations

import re

import torch

_STICKY = (
    "illegal memory access",
    "illegal address",
    "illegal instruction",
    "invalid address space",
    "invalid program counter",
    "misaligned address",
    "device-side assert",
    "hardware stack error",
    "launch timed out",
    "unspecified launch failure",
    "uncorrectable ECC error",
)


def is_sticky(error: BaseException) -> bool:
    """True for an error that leaves the device's context unusable. Out of memory is none."""
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return re.search(r"\bCUDA\b", text) is not None and any(phrase in text for phrase in _STICKY)
