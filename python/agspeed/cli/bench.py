# SPDX-License-Identifier: Apache-2.0
"""`agspeed bench ...`: passes its arguments to benchmarks/run.py of the source checkout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import agspeed
from agspeed.errors import UserError

__all__ = ["add", "run"]

_RUNNER = Path("benchmarks") / "run.py"


def add(commands: Any) -> None:
    """Registers the command for the list of commands alone: `main` calls `run` with all arguments after "bench"."""
    commands.add_parser("bench", help="run the benchmarks of a source checkout (agspeed bench --help)", add_help=False)


def run(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by the runner, so that signals and the exit code are the runner's."""
    root = _checkout()
    path = os.pathsep.join([str(root / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(root / _RUNNER), *(arguments or ["run"])]
    os.execve(command[0], command, {**os.environ, "PYTHONPATH": path})


def _checkout() -> Path:
    """Returns the checkout from which this package runs, or the one that contains the working directory."""
    here = Path.cwd()
    for folder in (Path(agspeed.__file__).resolve().parents[2], here, *here.parents):
        if (folder / _RUNNER).is_file() and (folder / "python" / "agspeed" / "__init__.py").is_file():
            return folder
    raise UserError(
        "The benchmarks are part of the source, not of the installed package: run `agspeed bench` inside a checkout."
    )
