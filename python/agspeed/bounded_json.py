# SPDX-License-Identifier: Apache-2.0
"""Parses JSON from untrusted files and peers within limits.

Deeply nested JSON can crash a process that reads or prints it (runtime/base/json_depth.h). Numbers that no machine type
holds raise later, in code that computes with them. `loads` refuses both. Pure.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = ["MAX_DEPTH", "loads"]

MAX_DEPTH = 100
_MAX_DIGITS = 20
_UNTIL_BRACKET = re.compile(r'(?:[^][{}"]|"(?:[^"\\]|\\.)*+"?)*+(?:([][{}])|\Z)', re.DOTALL)
"""Up to the next bracket outside of texts, or up to the end."""


def loads(text: str | bytes) -> Any:
    """Like `json.loads`, within limits. Raises: ValueError for invalid JSON, for nesting deeper than `MAX_DEPTH`, for
    numbers that are too large, and for NaN and infinities, which `json.loads` accepts."""
    if not isinstance(text, str):
        text = text.decode()
    depth = 0
    for found in _UNTIL_BRACKET.finditer(text):
        if (bracket := found[1]) is not None:
            depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return json.loads(text, parse_constant=_refuse, parse_float=_float, parse_int=_integer)


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else _refuse(digits)


def _float(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word[:40]} is not a number that JSON can hold here")
