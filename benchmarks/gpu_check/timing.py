# SPDX-License-Identifier: Apache-2.0
"""The step clock and the memory meter, compared with torch's own figures."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from agspeed.devices.accelerator import Accelerator
from agspeed.devices.clock import LateSteps, StepTimer
from agspeed.devices.meter import DeviceMeter
from benchmarks.gpu_check.parts import Findings

_MOST_OFF = 0.03
_CONTROL = (0.98, 1.02)
_MOST_OFF_PEAK = 0.02


class _Loop:
    """A training loop around a model whose step takes a few milliseconds."""

    def __init__(self, width: int) -> None:
        layers = [part for _ in range(6) for part in (nn.Linear(width, width), nn.GELU())]
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.data = torch.randn(1024, width, device="cuda")

    def forward(self) -> torch.Tensor:
        return self.model(self.data).square().mean()

    def finish(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def clock(seconds: float) -> Findings:
    """Compares medians of steps: timed by events without waiting, and by the host's clock around synchronised steps."""
    loop = _Loop(4096)
    late: LateSteps[int] = LateSteps(StepTimer(Accelerator(torch.device("cuda", 0))))
    for _ in range(5):
        loop.finish(loop.forward())
    by_events: list[float] = []
    until = time.monotonic() + 0.4 * seconds
    count = 0
    while time.monotonic() < until and count < 400:
        late.timer.step_begins()
        late.timer.forward_begins()
        loss = loop.forward()
        late.timer.forward_ends()
        loop.finish(loss)
        late.add(count)
        count += 1
        by_events += [times.busy for _, times in late.finished()]
    by_events += [times.busy for _, times in late.drain()]
    by_host = []
    for _ in range(max(20, len(by_events) // 2)):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loop.finish(loop.forward())
        torch.cuda.synchronize()
        by_host.append(time.perf_counter() - begun)
    found, expected = statistics.median(by_events), statistics.median(by_host)
    half = len(by_events) // 2
    control = statistics.median(by_events[:half]) / statistics.median(by_events[half:])
    figures = {
        "events_s": found,
        "synchronised_s": expected,
        "control": control,
        "steps": count,
        "timed": len(by_events),
    }
    is_close = expected < 2e-3 or abs(found / expected - 1) <= _MOST_OFF
    return {"holds": is_close and _CONTROL[0] <= control <= _CONTROL[1], "figures": figures}


def meter(seconds: float) -> Findings:
    """Compares the meter's peaks with torch's own peak statistics, and checks that the meter leaves those unchanged."""
    figures = []
    for width in (1024, 2048, 4096):
        loop = _Loop(width)
        for _ in range(3):
            loop.finish(loop.forward())
        measured = DeviceMeter(Accelerator(torch.device("cuda", 0)))
        torch.cuda.reset_peak_memory_stats()
        measured.acquire(None)
        loss = loop.forward()
        measured.sample()
        loop.finish(loss)
        before = torch.cuda.max_memory_allocated()
        found = measured.take_peak(None)
        figures.append({"width": width, "meter": found, "torch": before, "kept": torch.cuda.max_memory_allocated()})
    holds = all(
        abs(each["meter"] / each["torch"] - 1) <= _MOST_OFF_PEAK and each["kept"] == each["torch"] for each in figures
    )
    return {"holds": holds, "figures": figures}
