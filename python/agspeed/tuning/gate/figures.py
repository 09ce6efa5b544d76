# SPDX-License-Identifier: Apache-2.0
"""Formats the gate's findings for reports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from agspeed.reporting.parts import Json
from agspeed.tuning.gate.compare import TensorError


def severity(error: TensorError) -> tuple[bool, float]:
    return not error.ok, max(error.rms / (error.allowed_rms or 1.0), error.max / (error.allowed_max or 1.0))


_FIGURES = ("max", "rms", "eager_max", "eager_rms", "allowed_max", "allowed_rms")


def summarize(errors: Sequence[TensorError]) -> Json | None:
    """Returns the worst error of a group in the report's form; None for an empty group."""
    if not errors:
        return None
    worst = max(errors, key=severity)
    plain = {key: _finite(getattr(worst, key)) for key in _FIGURES}
    return {**plain, "worst": worst.name}


def _finite(value: float) -> float | str:
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else "inf"


def readable(placeholder: str) -> str:
    """Returns the module path for Dynamo's name of a parameter or buffer; other names unchanged."""
    return re.sub("_(?:modules|parameters|buffers)_", ".", placeholder.strip("_")).removeprefix("l_self.")
