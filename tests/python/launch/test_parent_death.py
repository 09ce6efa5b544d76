# SPDX-License-Identifier: Apache-2.0
"""Processes that must not outlive the process that wanted them."""

from __future__ import annotations

import os
import subprocess
import sys

_SCRIPT = "import sys; from agspeed.parent_death import end_with; end_with(int(sys.argv[1])); print('goes on')"


def _outcome(parent: int) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", _SCRIPT, str(parent)], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_process_goes_on_while_its_parent_lives() -> None:
    assert _outcome(os.getpid()) == (0, "goes on\n")


def test_a_process_ends_if_its_parent_was_killed_and_not_waited_for() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert _outcome(parent.pid) == (1, "")
    parent.wait()


def test_a_process_ends_if_its_parent_is_gone() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ""])
    parent.wait()
    assert _outcome(parent.pid) == (1, "")
