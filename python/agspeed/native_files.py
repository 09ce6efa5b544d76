# SPDX-License-Identifier: Apache-2.0
"""Which native extensions lie beside the package: one file for each release of torch, `_native_torch215.*.so` for 2.15.

torch's C++ interface changes from one minor release to the next, so each file fits one of them. Loads neither torch nor
an extension.

Thread-safety: any thread may call.
"""

from __future__ import annotations

import importlib.machinery
import re
from pathlib import Path

__all__ = ["extension_for", "extensions", "release"]

_FOLDER = Path(__file__).parent


def release(torch_version: str) -> tuple[int, int]:
    """(2, 15) of "2.15.0+cu132"; (0, 0) of text that starts otherwise."""
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def extensions() -> dict[tuple[int, int], Path]:
    """The extensions for this Python, by torch's release, oldest first."""
    found = {}
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        for path in _FOLDER.glob(f"_native_torch*{suffix}"):
            digits = path.name.removeprefix("_native_torch").removesuffix(suffix)
            if digits.isdecimal():
                found[int(digits[0]), int(digits[1:])] = path
    return dict(sorted(found.items()))


def extension_for(torch_version: str) -> tuple[Path | None, str]:
    """The file for a torch, or None and one sentence that says why there is none and what to do."""
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
