# SPDX-License-Identifier: Apache-2.0
"""`agspeed run` as a process whose output is read at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lint import sources

TIMEOUT_S = 60


def start(*words: str | Path, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AGSPEED_", "HOROVOD_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "agspeed", "run", *map(str, words)],
        env=environment | {"PYTHONPATH": str(sources.ROOT / "python")} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*words: str | Path, **variables: str) -> tuple[int, str, str]:
    process = start(*words, **variables)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err
