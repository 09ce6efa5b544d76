# SPDX-License-Identifier: Apache-2.0
"""Whose code a file is."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch

PACKAGE = str(Path(__file__).parent.parent) + os.sep
_LIBRARIES = (PACKAGE, str(Path(torch.__file__).parent) + os.sep, str(Path(os.__file__).parent) + os.sep)
_INSTALLED = tuple(sysconfig.get_path(kind) + os.sep for kind in ("purelib", "platlib"))


def is_installed(path: str) -> bool:
    """Whether a file belongs to a package that was installed, which may know of compilers."""
    return path.startswith(_INSTALLED)


def is_users(path: str) -> bool:
    """False for files of torch, agspeed and the standard library."""
    return not path.startswith(_LIBRARIES)
