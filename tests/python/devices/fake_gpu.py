# SPDX-License-Identifier: Apache-2.0
"""A simulated GPU: a stream and its host, each with a clock of its own. Operators run on the CPU. `work` sets the time
that they would take on the GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agspeed.devices import placement
from agspeed.frontend import home
from agspeed.tuning import database_key

DEVICE = torch.device("cuda", 0)


class FakeEvent:
    """See `agspeed.devices.clock.Event`."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu, self._at = gpu, 0.0

    def record(self) -> None:
        assert not self._gpu.capturing, "an event was recorded while the stream is captured"
        self._gpu.num_recorded += 1
        self._at = max(self._gpu.host, self._gpu.end)

    def query(self) -> bool:
        return self._at <= self._gpu.host

    def synchronize(self) -> None:
        self._gpu.num_waits += 1
        self._gpu.host = max(self._gpu.host, self._at)

    def elapsed_time(self, end_event: Any) -> float:
        assert self.query() and end_event.query(), "times are read before they are known"
        return 1e3 * float(end_event._at - self._at)


class FakeGpu:
    """Replaces an `Accelerator`. All times in seconds; `host` is the host's clock, `end` the time when the stream is
    idle."""

    def __init__(self) -> None:
        self.device = DEVICE
        self.host = self.end = 0.0
        self.num_recorded = self.num_waits = self.num_events = 0
        self.capturing = False

    def event(self) -> FakeEvent:
        self.num_events += 1
        return FakeEvent(self)

    def is_capturing(self) -> bool:
        return self.capturing

    def work(self, seconds: float) -> None:
        """The host submits work that takes `seconds`."""
        self.end = max(self.host, self.end) + seconds

    def synchronize(self) -> None:
        self.host = max(self.host, self.end)

    def free_bytes(self) -> int | None:
        return None

    def allocated_bytes(self) -> tuple[int, int]:
        return 0, 0

    def identity(self) -> dict[str, str]:
        return {"name": "fake"}

    def why_no_child(self, needed_bytes: int) -> str | None:
        return None


def install(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Makes sessions treat every target as one on a fake GPU."""
    gpu = FakeGpu()
    monkeypatch.setattr(placement, "home_of", lambda tensors: DEVICE)
    monkeypatch.setattr(placement, "why_eager", lambda tensors, home: None)
    for module in (home, database_key):
        monkeypatch.setattr(module, "accelerator_of", lambda device: gpu if device == DEVICE else None)
    return gpu
