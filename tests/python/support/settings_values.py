# SPDX-License-Identifier: Apache-2.0
"""A valid value for each setting of the table, in the forms that Python, variables and files need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agspeed.config import Secret, Setting

SECRET = "correct horse battery staple"
# For each kind: a value as Python passes it, the resulting setting, and the value as text in a variable.
VALID: dict[str, tuple[Any, Any, str]] = {
    # keep-sorted
    "cache_folder": ("/c", Path("/c"), "/c"),
    "flag": (True, True, "Yes"),
    "integer": (7, 7, "7"),
    "names": (["native", "eager"], ("native", "eager"), "native, eager"),
    "path": ("/p", Path("/p"), "/p"),
    "ratio": (0.5, 0.5, "0.5"),
    "report": ("/r.json", Path("/r.json"), "/r.json"),
    "seconds": (2, 2.0, "2"),
    "text": ("=eth0", "=eth0", "=eth0"),
    "tristate": (False, False, "off"),
}


def ids(settings: list[Setting]) -> list[Any]:
    return [pytest.param(setting, id=setting.name) for setting in settings]


def valid(setting: Setting) -> tuple[Any, Any, str]:
    if setting.secret:
        return SECRET, Secret(SECRET), SECRET
    if setting.choices:
        return setting.choices[-1], setting.choices[-1], setting.choices[-1].upper()
    if setting.kind == "flag" and setting.default:
        return False, False, "No"
    return VALID[setting.kind]


def as_toml(value: Any) -> str | None:
    """Returns the value as TOML text, or None if TOML cannot express it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return None if "\0" in value else f'"{value}"'
    if isinstance(value, int):
        return str(value) if abs(value) < 2**63 else None
    return str(value) if isinstance(value, float) else str(list(value))
