# SPDX-License-Identifier: Apache-2.0
"""The type of `Controller.snapshot`. It exists for type checkers only, as the types of the native extension do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agspeed._native import TunerSnapshot

    class TuningSnapshot(TunerSnapshot):
        """The tuner's state, and how the database takes part in it, for the report."""

        note: str | None
        """A sentence about earlier results that are not used, or about a decision for this process alone."""
        is_passing: bool
        """Whether the decision is for this process alone, because the machine lacked something for a time."""
        retained: dict[str, Any]
        """The report's object about retained memory."""
        has_database: bool
        """Whether decisions can be stored."""
