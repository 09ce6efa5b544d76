# SPDX-License-Identifier: Apache-2.0
"""A compile child ends with the training process, whichever of its threads hears of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_CHILD = """
import subprocess, sys, threading
from agspeed.tuning.child import worker

assert worker._ends_with(int(sys.argv[1]))
for _ in range(16):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
compiler = subprocess.Popen(["sleep", "100"])
print(compiler.pid, flush=True)
compiler.wait()
"""
_TRAINING = """
import os, signal, subprocess, sys

command = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
compiler = child.stdout.readline().decode().strip()
os.killpg(child.pid, signal.SIGSTOP)
print(child.pid, compiler, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stopped_child_that_waits_for_its_compiler_ends_with_training() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for _ in range(5):
        command = [sys.executable, "-c", _TRAINING, _CHILD]
        killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        pids, deadline = [int(pid) for pid in killed.stdout.split()], time.monotonic() + 30
        while any(map(_is_alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = [pid for pid in pids if _is_alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, "child or compiler is left"


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
