# SPDX-License-Identifier: Apache-2.0
"""Programs that run in processes of their own, and the records that they leave in a cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agspeed import native


def output_of(script: str, *arguments: object) -> dict[str, Any]:
    """Runs `script` in a process of its own. Its last line of output is JSON."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def records(cache_dir: Path) -> list[Any]:
    extension = native.load()
    assert extension is not None
    return [row["record"] for row in extension.TuningDatabase(str(cache_dir / "tuning.sqlite")).list()]
