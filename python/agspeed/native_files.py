# SPDX-License-Identifier: Apache-2.0
"""Finds the native extensions in the package's folder: one per torch release, `_native_torch215.*.so` for torch 2.15.

torch's C++ interface changes from one minor release to the next, so each file fits one release. This module loads
neither torch nor an extension.

Thread-safety: any thread may call.
"""

from __future__ import annotations

import importlib.machinery
import re
from pathlib import Path

__all__ = ["extension_for", "extensions", "release"]

_FOLDER = Path(__file__).parent


def release(torch_version: str) -> tuple[int, int]:
    """Returns (2, 15) for "2.15.0+cu132", and (0, 0) for text that does not start with a version."""
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def extensions() -> dict[tuple[int, int], Path]:
    """Returns the extensions for this Python: {torch release: file}, oldest release first."""
    found = {}
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        for path in _FOLDER.glob(f"_native_torch*{suffix}"):
            digits = path.name.removeprefix("_native_torch").removesuffix(suffix)
            if digits.isdecimal():
                found[int(digits[0]), int(digits[1:])] = path
    return dict(sorted(found.items()))


def extension_for(torch_version: str) -> tuple[Path | None, str]:
    """Returns the file for a version of torch and "", or None and a sentence that says why and what to do."""
    found = extensions()
    wanted = release(torch_version)
    if wanted in found:
        return found[wanted], ""
    if not found:
        return None, (
            "the native extension agspeed._native is not built for this Python: run `make build`, or install the wheel "
            "for this Python version."
        )
    names = [f"{major}.{minor}" for major, minor in found]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return None, (
        f"the native extension was built for torch {listed}, but {torch_version} is installed: install one that fits "
        f'with `pip install "torch=={names[-1]}.*"`, or build the extension for this one with `make build`.'
    )
