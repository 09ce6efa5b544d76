# SPDX-License-Identifier: Apache-2.0
"""The machine that the numbers depend on: its fingerprint, and its load by others during a measurement.

Linux only (/proc). `Watch` may be used from one thread at a time.
"""

import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def fingerprint() -> dict[str, object]:
    """CPU, cores, memory, kernel, Python and library versions, but nothing that identifies the host or its user."""
    import torch

    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "allocator": "preloaded" if os.environ.get("LD_PRELOAD") else "default",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def pin(threads: int) -> list[int]:
    """Restricts this process to its last `threads` allowed cores and returns them. Raises ValueError if too few."""
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise ValueError(f"asked for {threads} threads, but only {len(allowed)} cores are allowed")
    cores = allowed[-threads:]
    os.sched_setaffinity(0, cores)
    return cores


@dataclass
class Watch:
    """Measures the share of `cores` that the hypervisor and other processes take, from construction to `read`."""

    cores: list[int]
    _wall: float = field(default_factory=time.monotonic, init=False)
    _own: float = field(default_factory=lambda: _own_seconds(), init=False)
    _start: dict[int, tuple[float, float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._start = _core_seconds(self.cores)

    def read(self) -> dict[str, object]:
        """Shares of the watched core time: `steal`, and `outside` (busy, but not for this process or its children)."""
        available = max(time.monotonic() - self._wall, 1e-9) * len(self.cores)
        now = _core_seconds(self.cores)
        busy = sum(now[core][0] - self._start[core][0] for core in self.cores)
        steal = sum(now[core][1] - self._start[core][1] for core in self.cores)
        outside = busy - (_own_seconds() - self._own)
        return {
            "cores": self.cores,
            "steal": round(steal / available, 4),
            "outside": round(max(outside, 0.0) / available, 4),
            "load_1min": os.getloadavg()[0],
        }


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _core_seconds(cores: list[int]) -> dict[int, tuple[float, float]]:
    """Per core: busy seconds (user, nice, system, irq, softirq) and stolen seconds since boot."""
    result = {}
    for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _wait, irq, soft, steal = (int(value) / _TICK for value in fields[:8])
            result[int(name[3:])] = (user + nice + system + irq + soft, steal)
    return result
