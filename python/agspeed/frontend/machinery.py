# SPDX-License-Identifier: Apache-2.0
"""Imports everything that a session needs for capture and tuning, at once and as late as possible (`startup.py`).

Sessions and their parts import this module inside their functions.
"""

from agspeed.backends import candidates
from agspeed.backends.checkpointing import repetitions
from agspeed.frontend.capture import Capture, CaptureEvent
from agspeed.frontend.shadow.comparison import Comparison
from agspeed.regions.region import Region
from agspeed.tuning.build import build_in_parts
from agspeed.tuning.controller import Controller
from agspeed.tuning.deferred_regions import DeferredRegions

__all__ = [
    "Capture",
    "CaptureEvent",
    "Comparison",
    "Controller",
    "DeferredRegions",
    "Region",
    "build_in_parts",
    "repetitions",
]

candidates()  # loads the candidates' modules, the largest part
