# SPDX-License-Identifier: Apache-2.0
"""A process with a GPU that the host simulates: ``python -m tests.python.devices.host_gpu MODULE:FUNCTION [JSON]``.

Calls the function with the JSON's items as keywords and prints its result as JSON. Kernels of the native candidate run
on the SIMT runner behind a fake driver. Torch's CUDA operators run the CPU's code. Use it only in a process of its own,
because it changes torch for good.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "tests" / "backends" / "simt" / "libhost_gpu.so"


def install() -> None:
    import torch

    torch.cuda._lazy_init = lambda: None  # type: ignore[assignment]
    ctypes.CDLL(str(LIBRARY)).agInstallHostGpu()


def call(function: str, **keywords: Any) -> Any:
    """Returns the function's result in a process with such a GPU."""
    command = [sys.executable, "-m", __name__, function, json.dumps(keywords)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    install()
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))))
