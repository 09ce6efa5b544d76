# SPDX-License-Identifier: Apache-2.0
"""Markdown tables, paragraphs, and estimates as text in them."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_WIDTH = 120


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; empty when there are no rows."""
    if not rows:
        return ""
    return "\n".join([_line(columns), "|" + "---|" * len(columns), *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def paragraph(text: str) -> str:
    """The text in lines of at most 120 characters. A text in back quotes stays in one line."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    return textwrap.fill(whole, _WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def spread(estimate: Mapping[str, Any]) -> str:
    """A median with half of its interval."""
    return f"{estimate['value']:.2f} ± {estimate['half_width'] * estimate['value']:.3f}"


def interval(estimate: Mapping[str, Any], number: Callable[[float], str] = "{:.3f}".format) -> str:
    """A median with both ends of its interval, or alone where these are not known."""
    value, *ends = (estimate.get(key) for key in ("value", "low", "high"))
    return number(value) if None in ends else f"{number(value)} ({' to '.join(map(number, ends))})"
