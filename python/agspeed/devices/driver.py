# SPDX-License-Identifier: Apache-2.0
"""Queries NVIDIA's driver about the GPUs through libcuda, without torch. Creates no context and never raises.

API: CUDA Driver API, "Initialization", "Device Management" and "Version Management".
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, NamedTuple

EXCLUSIVE_MODES = ("exclusive process", "exclusive thread", "prohibited")
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
_COMPUTE_MODE, _MAJOR, _MINOR = 20, 75, 76  # CU_DEVICE_ATTRIBUTE_...
_LIBRARY = "libcuda.so.1"
_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")
_NAME_BYTES = 256


class Gpu(NamedTuple):
    """One device of the driver. capability: for example (9, 0). memory_bytes: the device's total memory."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    compute_mode: str


class Driver(NamedTuple):
    """The driver's devices, the CUDA version that it supports (such as "13.0"), and why there are no devices."""

    gpus: tuple[Gpu, ...]
    cuda: str
    why_none: str


def compute_mode(index: int) -> str:
    """Returns the compute mode of a visible device; "unknown" without a driver."""
    gpus = look().gpus
    return gpus[index].compute_mode if index < len(gpus) else "unknown"


@functools.cache
def look(name: str = _LIBRARY) -> Driver:
    """Queries the driver in the shared library `name`, once per process."""
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return Driver((), "", f"no NVIDIA driver: {name} is not installed")
    try:
        return _look(library)
    except AttributeError as error:
        return Driver((), "", f"{name} is not a CUDA driver: {error}")


def kernel_driver() -> str:
    """Returns the version of NVIDIA's kernel driver, such as "570.86.15"; "" if none is loaded."""
    try:
        first = _KERNEL_DRIVER.read_text(encoding="ascii", errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return ""
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), "")


def _look(library: Any) -> Driver:
    code = library.cuInit(0)
    if code != 0:
        return Driver((), "", f"the NVIDIA driver does not start: {_error(library, code)}")
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    code = library.cuDeviceGetCount(ctypes.byref(count))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    if code != 0 or count.value == 0:
        return Driver((), cuda, _error(library, code) if code else "the NVIDIA driver shows no GPU")
    return Driver(tuple(_gpu(library, index) for index in range(count.value)), cuda, "")


def _gpu(library: Any, index: int) -> Gpu:
    device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(_NAME_BYTES)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, _NAME_BYTES, device)
    library.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    mode = _attribute(library, _COMPUTE_MODE, device)
    return Gpu(
        name.value.decode(errors="replace"),
        (_attribute(library, _MAJOR, device), _attribute(library, _MINOR, device)),
        size.value,
        _COMPUTE_MODES[mode] if 0 <= mode < len(_COMPUTE_MODES) else "unknown",
    )


def _attribute(library: Any, number: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int(-1)
    library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _error(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if library.cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value:
        return f"{text.value.decode(errors='replace')} (error {code})"
    return f"error {code}"
