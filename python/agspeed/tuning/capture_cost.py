# SPDX-License-Identifier: Apache-2.0
"""Estimates the time that capturing a model takes. In mode="auto" training must earn this time before anything is
captured. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from agspeed.reporting.parts import Json

_FIRST_S = 0.2
_PER_MODULE_S = 0.015
"""Measured with Dynamo on one core: 0.26 s for 4 modules, 1.1 s for a six-layer encoder, 2.5 s for a ResNet-50 with 151
modules."""
LOAD_PER_CAPTURE = 2.5
"""Compiling and gating a model in this process takes at most this many times as long as capturing it."""


def expected_seconds(graph: str, num_modules: int, rows: Iterable[Json]) -> float:
    """Returns the expected seconds to capture the graphs of a model.

    Args:
        graph: the model's hash in the tuning database's key.
        num_modules: the number of modules in the model.
        rows: rows of the tuning database. The estimate is the slowest earlier capture of the same model, at any sizes
            and settings. Without one, it follows from `num_modules`.
    """
    intact = [row for row in rows if row["key"] is not None and row["record"] is not None]
    earlier = [float(row["record"].get("capture_seconds") or 0) for row in intact if row["key"].get("graph") == graph]
    return max(earlier, default=0.0) or _FIRST_S + _PER_MODULE_S * num_modules
