# SPDX-License-Identifier: Apache-2.0
"""`agspeed --version [--verbose]`: prints the version and, if asked, the properties of the build."""

from __future__ import annotations

import platform

import agspeed
from agspeed.cli.probe import probe

__all__ = ["run"]


def run(verbose: bool) -> int:
    print(f"agspeed {agspeed.__version__}")
    if verbose:
        found = probe()
        print(f"python {platform.python_version()} ({platform.platform(terse=True)})")
        print(f"torch {found.get('torch') or 'not usable: ' + found['torch_error']}")
        if "native" in found:
            print("native extension: " + ", ".join(f"{key} {value}" for key, value in found["native"].items()))
        else:
            print(f"native extension not usable: {found['native_error']}")
    return 0
