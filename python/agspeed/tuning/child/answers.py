# SPDX-License-Identifier: Apache-2.0
"""Validates the answers of a compile child. Its own training process and ranks that share its compiles read them.

Candidates run in the child and can write anything to the pipe that carries its answers. Stateless functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NotRequired, TypedDict, cast

from agspeed.regions.proof import Proof
from agspeed.regions.state import ENDED
from agspeed.reporting.parts import Json

_MOST_TEXT = 1 << 16
_MOST_ROWS = 1024
_MOST_SECONDS = 1e9
_NAME = re.compile(r"[\w.+-]{1,100}")


class Answer(TypedDict):
    """An answer to a job. It has at least a state and a reason."""

    id: NotRequired[int]
    """The number of the job."""
    state: str
    reason: str
    compile_seconds: NotRequired[float]
    gate: NotRequired[Json]
    proof: NotRequired[Json | None]
    code_digest: NotRequired[str | None]
    twins: NotRequired[Sequence[str]]
    vector_isa: NotRequired[dict[str, bool]]


def read(line: bytes) -> object:
    """Returns the JSON value in a line; None if the line is not valid JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def understood(found: object) -> Answer | None:
    """Returns `found` if it is a valid answer to a job, else None."""
    if not isinstance(found, dict) or not {"state", "reason"} <= found.keys():
        return None
    is_valid = all(is_right(found[name]) for name, is_right in _FIELDS.items() if name in found)
    return cast(Answer, found) if is_valid else None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= _MOST_SECONDS


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _are_names(value: object) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_ROWS and all(map(_is_name, value))


def _are_flags(value: object) -> bool:
    return isinstance(value, dict) and len(value) <= _MOST_ROWS and all(type(flag) is bool for flag in value.values())


def _is_proof(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    try:
        Proof.from_json(value)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return False
    return True


_FIELDS: dict[str, Callable[[object], bool]] = {
    "state": lambda value: value in ENDED,
    "reason": _is_text,
    "compile_seconds": _is_time,
    "gate": lambda value: isinstance(value, dict),
    "proof": _is_proof,
    "code_digest": lambda value: value is None or _is_name(value),
    "twins": _are_names,
    "vector_isa": _are_flags,
}
