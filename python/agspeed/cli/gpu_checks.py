# SPDX-License-Identifier: Apache-2.0
"""The checks of `agspeed doctor` for GPUs: driver, devices, and the tool that assembles PTX."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

from agspeed.cli.checks import Check
from agspeed.cli.probe import probe
from agspeed.devices import driver
from agspeed.reporting import format as fmt

__all__ = ["gpus"]

_OLDEST = (7, 5)


def gpus() -> Iterator[Check]:
    """Yields one line for each GPU, for the driver and for the PTX tools; without a GPU, one line with the reason."""
    found = driver.look()
    if not found.gpus:
        yield Check("gpu", "ok", f"none ({found.why_none}): models train on the CPU")
        return
    yield Check("gpu driver", "ok", f"{driver.kernel_driver() or 'version unknown'}, serves CUDA {found.cuda}")
    free = probe().get("gpu_free_bytes", [])
    for index, gpu in enumerate(found.gpus):
        left = f"{fmt.size(free[index])} free of " if index < len(free) else ""
        detail = f"{gpu.name}, sm_{gpu.capability[0]}{gpu.capability[1]}, {left}{fmt.size(gpu.memory_bytes)}"
        yield _judged(f"gpu {index}", detail, gpu)
    if not probe().get("cuda", False):
        remedy = "install a torch that is built for CUDA"
        yield Check("gpu in torch", "warn", f"torch {probe().get('torch', 'is missing and')} does not use it", remedy)
    where = _ptxas()
    detail = where if where is not None else "no ptxas: the driver itself turns PTX into machine code"
    yield Check("ptx tools", "ok", detail)


def _judged(name: str, detail: str, gpu: driver.Gpu) -> Check:
    if gpu.capability < _OLDEST:
        return Check(name, "warn", f"{detail}: older than sm_75, models stay eager there", "use a newer GPU")
    if gpu.compute_mode in driver.EXCLUSIVE_MODES:
        detail += f": its compute mode ({gpu.compute_mode}) admits no compile process beside training"
        return Check(name, "warn", detail, "nvidia-smi -c 0")
    return Check(name, "ok", detail)


def _ptxas() -> str | None:
    """Returns the path of an assembler, on PATH or in Triton's wheel; None without one."""
    if (found := shutil.which("ptxas")) is not None:
        return found
    triton = importlib.util.find_spec("triton")
    if triton is None or not triton.submodule_search_locations:
        return None
    path = Path(next(iter(triton.submodule_search_locations))) / "backends" / "nvidia" / "bin" / "ptxas"
    return str(path) if path.is_file() else None
