# SPDX-License-Identifier: Apache-2.0
"""The result of `Controller.snapshot`. Its type exists for type checkers only, like the native extension's types."""

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


def with_facts(
    tuner: TunerSnapshot, note: str | None, is_passing: bool, retained: dict[str, Any], has_database: bool
) -> TuningSnapshot:
    """Returns the tuner's state with the facts that the tuner does not know."""
    return {
        **tuner,
        "note": note,
        "is_passing": is_passing,
        "retained": retained,
        "has_database": has_database,
    }
