# SPDX-License-Identifier: Apache-2.0
"""`agspeed nccl env`: prints, for a shell, the variables that make NCCL load agspeed's network plug-in."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from agspeed import nccl

__all__ = ["add"]

_EPILOG = """\
example:
  eval "$(agspeed nccl env)"           on each host, before torchrun; NCCL_DEBUG=INFO then says "Using network agspeed"

`agspeed doctor --nccl` says why NCCL would not use it."""


def add(commands: Any) -> None:
    parser = commands.add_parser("nccl", help="use NCCL with agspeed's network plug-in")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    env = actions.add_parser(
        "env",
        help="print the variables for a shell",
        description="Prints the environment variables that make NCCL load agspeed's network plug-in.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    env.set_defaults(run=_env)


def _env(_: argparse.Namespace) -> int:
    for name, value in nccl.variables().items():
        print(f"export {name}={shlex.quote(value)}")
    return 0
