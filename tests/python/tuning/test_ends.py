# SPDX-License-Identifier: Apache-2.0
"""A tuning run that ends at any moment, in any way, leaves nothing behind: at once if it exits by itself, otherwise
once the next run has started. A few ends run here; AG_TEST_ENDS sets their number, AG_TEST_SEED selects
them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agspeed import native
from tests.lint import sources

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(0),
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
_COUNT = int(os.environ.get("AG_TEST_ENDS", "3"))
_SEED = int(os.environ.get("AG_TEST_SEED", "1"))
_LONGEST_S = 20.0
"""A run from start to end: imports, capture, compiles, timing and some steps after the decision."""
_TIMEOUT_S = 120
_MARK = "AG_TEST_ENDED_RUN"
_TRAIN = """
import signal, sys, time
end, seconds, cache, hidden = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
last = time.monotonic() + seconds
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch
print("torch is loaded", flush=True)  # its import swallows exceptions, Ctrl-C among them
import agspeed
model = torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, 8))
agspeed.optimize(model, mode="max", backends=["native", "aot", "inductor"], cache_dir=cache)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
while end not in ("exit", "exception") or steps < 3 or time.monotonic() < last:
    steps += 1
    model(torch.ones(16, 64)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if end == "exception":
    raise ValueError("the user's own")
"""
_SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "kill -9": signal.SIGKILL}
_OWN_ENDS = ("exit", "exception", "Ctrl-C")


def _processes() -> list[int]:
    """Returns the processes of these runs that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"{_MARK}={os.getpid()}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _left(folders: list[Path]) -> set[str]:
    """Returns the files in the folders. Torch's own empty folder in the temporary directory does not count."""
    return {
        str(path)
        for folder in folders
        for path in folder.rglob("*")
        if not path.name.startswith("torchinductor_") or any(path.iterdir())
    }


def test_a_run_that_ends_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    folders = [tmp_path / "tmp", tmp_path / "work"]
    for folder in folders:
        folder.mkdir()
    script = tmp_path / "train.py"
    script.write_text(_TRAIN)
    variables = {"TMPDIR": str(folders[0]), "PYTHONPATH": str(sources.ROOT / "python"), _MARK: str(os.getpid())}
    rng = random.Random(_SEED)
    before: set[str] = set()
    for number in range(_COUNT):
        end = rng.choice([*_OWN_ENDS, *_SIGNALS])
        seconds = rng.uniform(0.5, _LONGEST_S)
        hidden = 64 + 8 * rng.randrange(100)  # mostly another model each time, so that it is compiled and tuned anew
        print(f"seed {_SEED}, run {number}: {end} after {seconds:.2f} s, {hidden} features")
        command = [sys.executable, str(script), end, str(seconds), str(tmp_path / "cache"), str(hidden)]
        run = subprocess.Popen(
            command, env=os.environ | variables, cwd=folders[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            assert run.stdout is not None
            assert b"torch is loaded\n" in iter(run.stdout.readline, b"")
            if end in _SIGNALS:
                time.sleep(seconds)
                run.send_signal(_SIGNALS[end])
            output, _ = run.communicate(timeout=_TIMEOUT_S)
        finally:
            run.kill()
        deadline = time.monotonic() + _TIMEOUT_S
        while (running := _processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not running, f"processes {running} are left"
        left = _left(folders)
        # Without this condition, the run may have ended before its sweep.
        has_begun = end in ("exit", "exception") or b"agspeed:" in output
        assert not has_begun or not left & before, f"an earlier run's files are left\n{output.decode()}"
        if end in _OWN_ENDS and has_begun:
            assert not left, output.decode()
        before = left


def test_runs_are_distinguished() -> None:
    """Each run here is found by a variable of its environment."""
    with subprocess.Popen(["sleep", "60"], env=os.environ | {_MARK: str(os.getpid())}) as process:
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while process.pid not in _processes() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert _processes() == [process.pid]
        finally:
            process.kill()
