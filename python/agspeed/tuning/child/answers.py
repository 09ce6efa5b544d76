# SPDX-License-Identifier: Apache-2.0
"""Validates the answers of a compile child. Its own training process and ranks that share its compiles read them.

Candidates run in the child and can write anything to the pipe that carries its answers. Stateless functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from agspeed.tuning.proof import Proof

_STATES = ("failed", "ready", "rejected", "skipped")
_MOST_TEXT = 1 << 16
_MOST_ROWS = 1024
_MOST_SECONDS = 1e9
_NAME = re.compile(r"[\w.+-]{1,100}")


def read(line: bytes) -> Any:
    """Returns the JSON value in a line; None if the line is not valid JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def understood(found: Any) -> dict[str, Any] | None:
    """Returns `found` if it is a valid answer to a job, else None."""
    if not isinstance(found, dict) or not {"state", "reason"} <= found.keys():
        return None
    return found if all(is_right(found[name]) for name, is_right in _FIELDS.items() if name in found) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= _MOST_SECONDS


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_ROWS and all(map(_is_name, value))


def _are_flags(value: Any) -> bool:
    return isinstance(value, dict) and len(value) <= _MOST_ROWS and all(type(flag) is bool for flag in value.values())


def _is_proof(value: Any) -> bool:
    try:
        if value is not None:
            Proof.from_json(value)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return False
    return True


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "state": lambda value: value in _STATES,
    "reason": _is_text,
    "compile_seconds": _is_time,
    "gate": lambda value: isinstance(value, dict),
    "proof": _is_proof,
    "code_digest": lambda value: value is None or _is_name(value),
    "twins": _are_names,
    "vector_isa": _are_flags,
}
