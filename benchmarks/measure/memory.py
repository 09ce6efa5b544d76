# SPDX-License-Identifier: Apache-2.0
"""Memory of training steps: their peak, as the allocator reports it to c10, and the allocator itself.

The peak is from agspeed's meter if the native module is built, and from torch's profiler otherwise. Both listen to the
same reports and count bytes above what was live when the measured steps began. So weights and optimizer state are not
included.
"""

import itertools
import sys

import torch

from benchmarks.workloads.base import Batch, Memory, Training


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


def use_allocator(memory: Memory) -> None:
    """Switches the allocator of the process. Raises RuntimeError if memory cannot be retained here."""
    if memory != "retained" and "agspeed.tuning.memory.retained" not in sys.modules:
        return
    from agspeed import native
    from agspeed.tuning.memory.retained import RETAINED, limits

    RETAINED.set_paused(memory != "chosen")
    extension = native.load()
    if memory == "retained":
        reason = native.why_missing() if extension is None else extension.retain_memory(*limits(None))
        if reason:
            raise RuntimeError(f"memory cannot be retained: {reason}")
    elif extension is not None and not RETAINED.describe()["is_on"]:
        extension.release_memory()
