# SPDX-License-Identifier: Apache-2.0
"""`python -m agspeed.horovod train.py ...` runs a script whose `import horovod` finds agspeed.horovod."""

from __future__ import annotations

import os
import runpy
import sys

from agspeed.horovod.alias import install_alias
from agspeed.horovod.function_job import call

_USAGE = "usage: python -m agspeed.horovod [-m MODULE | SCRIPT] [ARGUMENTS ...]"


def main() -> None:
    """Runs the script or module on the command line, as Python would."""
    words = sys.argv[1:]
    if words == ["--call"]:  # a rank of function_job.run
        install_alias()
        return call()
    is_module = words[:1] == ["-m"]
    if len(words) < 1 + is_module or (words[0].startswith("-") and not is_module):
        sys.exit(_USAGE)
    install_alias()
    target = words[is_module]
    sys.argv = words[is_module:]
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        runpy.run_path(target, run_name="__main__")
    return None


main()
