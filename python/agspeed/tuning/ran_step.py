# SPDX-License-Identifier: Apache-2.0
"""A controller's record of a training step at its end, for steps whose time is known only later."""

from __future__ import annotations

from typing import NamedTuple


class RanStep(NamedTuple):
    """arm: the tuner's name for the plan that ran. peak_bytes: 0 if unknown. is_disturbed: the step captured graphs, or
    did not run as its plan says."""

    arm: str
    peak_bytes: int
    is_disturbed: bool
