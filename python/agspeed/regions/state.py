# SPDX-License-Identifier: Apache-2.0
"""The states of candidates, on a region and as the tuner's arms."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The states of a candidate on a region, and of the tuner's arms (runtime/tune/arms/arm.h). An `Outcome` has one of
    the last four."""

    WAITING = "waiting"
    COMPILING = "compiling"
    COMPILED = "compiled"
    LOADING = "loading"
    READY = "ready"
    REJECTED = "rejected"
    """The gate has not accepted it."""
    FAILED = "failed"
    """It raised an error when it was compiled or run."""
    SKIPPED = "skipped"
    """It was not tried."""


REFUSED = (State.REJECTED, State.FAILED)
"""The states of a candidate that was tried and must not run."""
ENDED = (State.READY, State.SKIPPED, *REFUSED)
"""The states of an `Outcome`."""
