# SPDX-License-Identifier: Apache-2.0
"""Makes a report's listings: the user's lines around a place, and the first lines of long texts."""

from __future__ import annotations

import linecache

__all__ = ["excerpt", "shortened"]

_BEFORE, _AFTER = 2, 12
_MAX_LINES, _MAX_WIDTH = 250, 200


def excerpt(file: str, line: int) -> str | None:
    """Returns the lines around `line` with their numbers, with `line` marked; None if the file cannot be read."""
    numbered = []
    for number in range(max(line - _BEFORE, 1), line + _AFTER + 1):
        text = linecache.getline(file, number)
        if text:
            mark = ">" if number == line else " "
            numbered.append(f"{mark}{number:5}  {text.rstrip()[:_MAX_WIDTH]}")
    return "\n".join(numbered) or None


def shortened(text: str) -> str | None:
    """Returns the first lines and the number of further lines; None for an empty text."""
    lines = text.strip().splitlines()
    kept = [line.rstrip()[:_MAX_WIDTH] for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        kept.append(f"... and {len(lines) - _MAX_LINES:,} more lines")
    return "\n".join(kept) or None
