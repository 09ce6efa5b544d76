# SPDX-License-Identifier: Apache-2.0
"""The console that every subcommand prints to."""

from __future__ import annotations

import sys

from rich.console import Console

__all__ = ["make_console"]

_PIPED_WIDTH = 120


def make_console() -> Console:
    """Standard output: as wide as the terminal, or 120 columns in a pipe or file, where nobody knows better."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPED_WIDTH, soft_wrap=False)
