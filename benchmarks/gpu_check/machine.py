# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine, and the verdict of NVIDIA's compute-sanitizer on a tuned training."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import torch

from agspeed import native
from agspeed.devices import driver
from agspeed.devices.accelerator import Accelerator, numerics_flags
from agspeed.reporting import environment as machine
from benchmarks.gpu_check.parts import Findings

_SANITIZED = """
import torch, agspeed
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).cuda()
agspeed.optimize(model, mode="max", backends=["aot", "cudagraph", "native"], cache_dir="/tmp/agspeed-gpu-check")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    model(torch.randn(16, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def environment(seconds: float) -> Findings:
    torch.zeros(1, device="cuda")
    gpu = Accelerator(torch.device("cuda", 0))
    figures: dict[str, Any] = {
        "versions": machine.versions(),
        "machine": machine.machine(),
        "gpu": gpu.identity(),
        "driver": driver.look()._asdict(),
        "flags": numerics_flags(),
        "free_bytes": gpu.free_bytes(),
        "extension": native.load() is not None,
    }
    return {"holds": torch.cuda.is_available() and native.load() is not None, "figures": figures}


def sanitizer(seconds: float) -> Findings:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return {"holds": True, "left_out": "compute-sanitizer is not installed"}
    command = [tool, "--error-exitcode", "9", sys.executable, "-c", _SANITIZED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"holds": True, "left_out": f"a tuned training under it takes more than {seconds:.0f} s"}
    return {"holds": done.returncode == 0, "why": done.stdout[-2000:]}
