# SPDX-License-Identifier: Apache-2.0
"""The interface through which regions get their inputs while captured code runs beside the module."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol


class RunBeside(Protocol):
    """One run of captured code beside the real one, on the thread that trains."""

    def begin(self, args: Sequence[Any], changed: Collection[int] | None) -> Sequence[Any]:
        """Called before a region runs with `args`. Returns: the inputs that it gets instead. changed: positions of the
        inputs that it changes in place; None: not known yet. Raises: an exception that ends the run early."""

    def end(self, args: Sequence[Any], given: Sequence[Any], changed: Collection[int]) -> None:
        """Called after the region has run on `given`."""
