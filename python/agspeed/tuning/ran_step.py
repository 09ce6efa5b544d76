# SPDX-License-Identifier: Apache-2.0
"""What a controller notes of a training step at its end, for where the step's time is known later only."""

from __future__ import annotations

from typing import NamedTuple


class RanStep(NamedTuple):
    """arm: what the tuner calls the plan that ran. peak_bytes: 0 where unknown. is_disturbed: it captured graphs, or
    ran while something else did."""

    arm: str
    peak_bytes: int
    is_disturbed: bool
