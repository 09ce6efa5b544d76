# SPDX-License-Identifier: Apache-2.0
"""The interface through which a controller uses its session."""

from __future__ import annotations

from typing import Protocol

import torch

from agspeed.backends import CompileOptions
from agspeed.config import Settings
from agspeed.distributed.rank_sync import RankSync
from agspeed.regions.outcome import Outcome
from agspeed.regions.region import Region


class Journal(Protocol):
    """The log of a controller's actions."""

    start_up_seconds: float
    capture_seconds: float

    def enter_phase(self, name: str) -> None: ...
    def stood_still(self, kind: str, seconds: float, candidate: str | None = None) -> None: ...


class Named(Protocol):
    """The module or step function that is tuned."""

    name: str


class Meter(Protocol):
    """Measures the memory of a device."""

    def acquire(self, user: object) -> None: ...
    def release(self, user: object) -> None: ...
    def take_peak(self, user: object) -> int: ...


class Surroundings(Protocol):
    """The device on which the target runs."""

    device: torch.device

    @property
    def max_late(self) -> int:
        """How many more steps may run before the time of a step is known."""

    @property
    def meter(self) -> Meter | None:
        """The device's memory meter; None on the CPU."""


class Captor(Protocol):
    """Runs the target, and knows what became of its capture."""

    def must_capture_again(self) -> bool: ...
    def why_nothing_was_captured(self) -> str: ...
    def take_disturbed(self) -> bool: ...


class Steerable(Protocol):
    """The attributes and methods of a session that a controller uses."""

    settings: Settings
    options: CompileOptions
    plan: str
    regions: list[Region]
    rank_sync: RankSync | None
    """Connects ranks that tune together and holds this rank's copy of their tuner; None if this process tunes alone."""

    @property
    def history(self) -> Journal: ...
    @property
    def home(self) -> Surroundings: ...
    @property
    def runner(self) -> Captor: ...
    @property
    def target(self) -> Named: ...

    def run_plan(self, plan: str) -> None: ...
    def settle(self, arm: str, reason: str) -> None: ...
    def compile_part(self, plan: str, region: Region) -> Outcome | None: ...
