# SPDX-License-Identifier: Apache-2.0
"""Recognises exceptions after which agspeed does not fall back to eager: the CUDA device is lost, or the user's own
signal handler has raised."""

from __future__ import annotations

import re
import signal
from types import CodeType
from typing import Any

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
    """Returns True for an error that makes the device's context unusable. Out of memory does not."""
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return re.search(r"\bCUDA\b", text) is not None and any(phrase in text for phrase in _STICKY)


def is_from_signal_handler(error: BaseException) -> bool:
    """Returns whether a signal handler raised `error`, in any interrupted code."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {_code_of(handler) for handler in handlers if callable(handler)}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "__func__", handler)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
