# SPDX-License-Identifier: Apache-2.0
"""Peak memory of training steps, as the allocator reports it to c10.

Uses agspeed's meter if the native module is built, and torch's profiler otherwise. Both listen to the same reports and
count bytes above what was live when the measured steps began. So weights and optimizer state are not included.
"""

import itertools

import torch

from benchmarks.workloads.base import Batch, Training


def peak_bytes(training: Training) -> dict[str, object]:
    """Highest number of live bytes above the start over one period of steps, and the method that measured it."""
    batches = [training.batches[index % len(training.batches)] for index in range(training.period)]
    try:
        from agspeed._native import MemoryMeter
    except ImportError:
        return {"bytes": _profiled_peak(training, batches), "method": "profiler"}
    meter = MemoryMeter()
    meter.start()
    for batch in batches:
        training.step(batch)
    meter.stop()
    return {"bytes": int(meter.peak_bytes()), "method": "meter"}


def _profiled_peak(training: Training, batches: list[Batch]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        for batch in batches:
            training.step(batch)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate((event.nbytes() for event in events), initial=0))
