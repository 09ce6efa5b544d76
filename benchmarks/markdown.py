# SPDX-License-Identifier: Apache-2.0
"""Markdown tables, and estimates as text in them."""

from collections.abc import Mapping, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; empty when there are no rows."""
    if not rows:
        return ""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(estimate: Mapping[str, Any]) -> str:
    """A median with half of its interval."""
    return f"{estimate['value']:.2f} ± {estimate['half_width'] * estimate['value']:.3f}"


def interval(estimate: Mapping[str, Any]) -> str:
    """A median with both ends of its interval."""
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"
