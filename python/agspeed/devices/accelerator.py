# SPDX-License-Identifier: Apache-2.0
"""Accelerator: a session's access to the GPU on which its target trains, through torch's device-generic calls.

Nothing here links to a CUDA library. Nothing resets torch's peak statistics, because they belong to the user. Sizes are
bytes. Only the training thread calls this. Only `synchronize` waits for the device.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch

from agspeed.devices import driver
from agspeed.devices.clock import Event
from agspeed.torch_compat import memory

CHILD_BYTES = 1 << 30
"""The memory that a second process needs on a GPU before it computes: its context and the libraries' workspaces."""


class Accelerator:
    """One device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device.type)
        self._is_capturing = getattr(self._module, "is_current_stream_capturing", None)

    def event(self) -> Event:
        """Returns a timing event that is not recorded yet."""
        return cast(Event, torch.Event(self.device, enable_timing=True))

    def is_capturing(self) -> bool:
        """Returns whether the calling thread's stream is being captured into a graph. During a capture nothing may be
        timed, allocated or waited for."""
        return self._is_capturing is not None and bool(self._is_capturing())

    def synchronize(self) -> None:
        """Waits until the device has finished all submitted work."""
        torch.accelerator.synchronize(self.device)

    def free_bytes(self) -> int | None:
        """Returns the bytes that can still be allocated: free on the device, or cached by torch's allocator. None if
        unknown."""
        try:
            free, _ = torch.accelerator.get_memory_info(self.device)
            cached = torch.accelerator.memory_reserved(self.device) - torch.accelerator.memory_allocated(self.device)
        except (RuntimeError, NotImplementedError, AssertionError):
            return None
        return int(free) + max(0, int(cached))

    def allocated_bytes(self) -> tuple[int, int]:
        """Returns (bytes allocated now, torch's peak since its last reset), with the private pools of graphs."""
        try:
            found = memory.device_stats(self.device.index or 0)["allocated_bytes"]["all"]
        except RuntimeError:  # the device's allocator has no statistics
            return 0, 0
        return int(found["current"]), int(found["peak"])

    def identity(self) -> dict[str, str]:
        """Returns the properties on which code for this device and its speed depend: a part of the database's key."""
        return {**_identity(self.device), **{name: str(value) for name, value in numerics_flags().items()}}

    def why_no_child(self, needed_bytes: int) -> str | None:
        """Returns why a second process with `needed_bytes` of tensors cannot use the device; None if it can."""
        if driver.compute_mode(self.device.index or 0) in driver.EXCLUSIVE_MODES:
            return f"the compute mode of {self.device} admits one process only (nvidia-smi -c 0 changes that)"
        free, wanted = self.free_bytes(), CHILD_BYTES + needed_bytes
        if free is not None and free < wanted:
            return (
                f"{self.device} has {free / 2**20:.0f} MiB left, and a compile process needs about "
                f"{wanted / 2**20:.0f} MiB there"
            )
        return None


def accelerator_of(device: torch.device) -> Accelerator | None:
    """Returns the accelerator for `device`; None for the CPU."""
    return _make(device) if device.type != "cpu" else None


@functools.cache
def _make(device: torch.device) -> Accelerator:
    return Accelerator(device)


def numerics_flags() -> dict[str, Any]:
    """Returns the process-wide flags that change the results of CUDA operators, by name; {} if CUDA is not in use.

    A flag is None if torch refuses to read it, for example because its older and newer names were mixed.
    """
    if not torch.cuda.is_initialized():
        return {}
    return {name: _flag(name) for name in NUMERICS_FLAGS}


NUMERICS_FLAGS = (
    "cuda.matmul.allow_tf32",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cudnn.allow_tf32",
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
)
"""Attributes below torch.backends."""


def set_numerics_flags(flags: dict[str, Any]) -> None:
    """Sets the flags that `numerics_flags` returned."""
    for name, value in flags.items():
        if value is not None and _flag(name) != value:
            home, _, attribute = f"torch.backends.{name}".rpartition(".")
            setattr(functools.reduce(getattr, home.split(".")[1:], torch), attribute, value)


def _flag(name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), torch.backends)
    except RuntimeError:
        return None


@functools.cache
def _identity(device: torch.device) -> dict[str, str]:
    if device.type != "cuda":
        return {"name": str(device)}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": driver.kernel_driver() or driver.look().cuda,
        "runtime": str(torch.version.cuda),
    }
