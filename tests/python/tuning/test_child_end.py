# SPDX-License-Identifier: Apache-2.0
"""A compile child and its compilers end with the training process, whichever thread of the child notices it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.support.processes import left_after_a_while

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
_WORKER = """
import os, subprocess, sys

from agspeed.tuning.child import worker

assert worker._ends_with(int(sys.argv[2]))
compiler = subprocess.Popen(["sleep", "100"])
with open("compiler", "w") as file:
    file.write(f"{compiler.pid}\\n")
os.write(int(sys.argv[1]), b'{"guarded": true}\\n')
compiler.wait()
"""
_NOTIFIED = """
import os, subprocess, sys

from agspeed.tuning.child import worker

assert worker._ends_with(int(sys.argv[1]))
for number in map(int, sys.argv[2:]):
    subprocess.run(["sh", "-c", f"kill -{number} $$"], check=True)
    os.kill(os.getpid(), number)
print("goes on")
"""
_SUSPENDING = """
import os, signal, sys, tempfile, time

from agspeed.backends import CompileOptions
from agspeed.tuning.child import process

process.WORKER = "waiting_worker"
child, job = process.Child(), process.Job("inductor", tempfile.TemporaryFile(), CompileOptions(num_threads=1))
child.submit(job)
child.set_level("suspended")
while not child._is_stopped:
    child.poll()
    time.sleep(0.01)
with open("compiler") as file:
    compiler = int(file.read())
while not any(line == "State:\\tT (stopped)\\n" for line in open(f"/proc/{compiler}/status")):
    time.sleep(0.01)
os.kill(child._process.pid, signal.SIGKILL)
if sys.argv[1] == "training too":
    os.kill(os.getpid(), signal.SIGKILL)
while not job.done:
    child.poll()
    time.sleep(0.01)
print(job.answer["reason"])
child.close()
"""


def test_a_stopped_child_that_waits_for_its_compiler_ends_with_training() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for _ in range(5):
        command = [sys.executable, "-c", _TRAINING, _CHILD]
        killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not _left([int(pid) for pid in killed.stdout.split()]), "child or compiler is left"


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["the child alone", "training too"])
def test_a_compiler_that_was_suspended_ends_with_a_child_that_is_killed(killed: str, tmp_path: Path) -> None:
    (tmp_path / "waiting_worker.py").write_text(_WORKER, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    output = tmp_path / "output"
    with output.open("w") as file:  # a pipe would stay open as long as a process is left
        subprocess.run(
            ["nohup", sys.executable, "-c", _SUSPENDING, killed],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=600,
            check=False,
        )
    left = _left([int((tmp_path / "compiler").read_text(encoding="utf-8"))])
    assert not left, "the compiler is left"
    if killed == "the child alone":
        assert "died of SIGKILL" in output.read_text()


def test_a_notice_to_all_processes_of_a_job_ends_neither_a_child_nor_its_compilers() -> None:
    notices = map(str, map(int, (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _NOTIFIED, str(os.getpid()), *notices]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False, process_group=0
    )
    assert done.stdout == "goes on\n", done.stderr


def _left(pids: list[int]) -> list[int]:
    """Waits for half a minute. Kills and returns the processes that still run."""
    left = left_after_a_while(pids, 30)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left
