# SPDX-License-Identifier: Apache-2.0
"""Runs programs under torchrun, for tests of whole processes and whole jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.python.support.installed import installed

_LIMIT_S = 300
#: The first lines of each rank. A rank ends itself after a while, because torchrun leaves its ranks when it is killed.
_FIRST = f"""
import datetime, os, pathlib, signal, sys, time
signal.alarm({_LIMIT_S - 30})
import torch
import torch.distributed as dist
folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
"""


def torchrun(folder: Path, program: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in two ranks. The program's variables `folder` and `rank` hold its folder and its rank."""
    script = folder / "program.py"
    script.write_text(_FIRST + program)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "AGSPEED_SOCKET_IFNAME": "lo", **installed(folder), **environment}
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options, str(script)]
    return subprocess.run([*launch, str(folder)], capture_output=True, text=True, timeout=_LIMIT_S, env=env, cwd=folder)
