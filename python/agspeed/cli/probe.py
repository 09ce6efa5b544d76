# SPDX-License-Identifier: Apache-2.0
"""Collects facts about torch and the native extension in a child process.

A child is used because loading either of them may end a process, and because the command line itself must be fast and
work without them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["installed_version", "native_files", "probe", "run_child"]

_TIMEOUT_S = 120
_SCRIPT = """
import json
found = {}
try:
    import torch
    found["torch"] = torch.__version__
    cuda, rocm = torch.version.cuda, getattr(torch.version, "hip", None)
    found["torch_flavour"] = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "the CPU"
    found["threads"] = torch.get_num_threads()
    found["cuda"] = torch.cuda.is_available()
    if found["cuda"]:
        found["gpu_free_bytes"] = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
except Exception as error:
    found["torch_error"] = f"{type(error).__name__}: {error}"
try:
    from agspeed.torch_compat import probe
    found["torch_parts"], found["torch_remedy"] = probe.to_json(), probe.remedy()
except Exception as error:
    found["torch_parts"] = {"torch_compat": f"{type(error).__name__}: {error}"}
try:
    from agspeed import _native, native
    found["native"] = _native.build_info()
except Exception as error:
    found["native_error"] = f"{type(error).__name__}: {error}"
try:
    native.load()
    found["network"] = _native.explain_interfaces()
except Exception as error:
    found["network_error"] = f"{type(error).__name__}: {error}"
try:
    found["transport"] = _native.describe_transport()
except Exception as error:
    found["transport_error"] = str(error)
try:
    from agspeed.config import resolve
    from agspeed.frontend.mistakes import check_settings
    check_settings(resolve())
except Exception as error:
    found["settings_error"] = str(error)
print("PROBE" + json.dumps(found))
"""


@functools.cache
def probe() -> Mapping[str, Any]:
    """Returns the child's findings: torch, threads, cuda, gpu_free_bytes, native, network, transport. If x is missing,
    x_error says why. Also settings_error, torch_flavour, torch_remedy and torch_parts ({part of torch: what does not
    fit, or ""})."""
    code, output = run_child(_SCRIPT, _TIMEOUT_S)
    line = next((line for line in output.splitlines() if line.startswith("PROBE{")), None)
    if line is None:
        reason = f"a process that loads it ended with code {code}"
        return {"torch_error": reason, "native_error": reason}
    found: dict[str, Any] = json.loads(line.removeprefix("PROBE"))
    return found


def run_child(script: str, timeout_s: float) -> tuple[int, str]:
    """Runs Python text with this package importable. Returns the exit code (-1: timed out) and all output. The child
    ends together with this process."""
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package_root, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"from agspeed.parent_death import end_with; end_with({os.getpid()})\n{script}"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return -1, (error.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")


def installed_version(package: str) -> str | None:
    """Returns the version of an installed distribution without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def native_files() -> list[str]:
    """Returns the file names of native extensions in the package's folder, for any version of Python."""
    return sorted(path.name for path in Path(__file__).resolve().parents[1].glob("_native*.so"))
