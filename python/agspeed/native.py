# SPDX-License-Identifier: Apache-2.0
"""Loads the native extension once and remembers, in one sentence, why it could not be.

``import agspeed`` and the eager path live without it: callers ask ``load()`` and fall back when it answers None. An
extension built for another torch release is refused, because torch's C++ interface changes between releases.

Thread-safety: any thread may call; the first call does the work under the import lock.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import ModuleType

from agspeed import config

__all__ = ["check_loaded", "configure", "load", "why_missing"]

_EXTENSION = "agspeed._native"


def load() -> ModuleType | None:
    """The extension, or None; then `why_missing` says why. Raises: as `configure`, until it has succeeded."""
    return _load()[0]


def why_missing() -> str:
    """One sentence with the remedy; empty when the extension is loaded."""
    return _load()[1]


def configure() -> None:
    """Hands the settings over once more, for variables that were set since the extension was loaded.

    Raises: UserError for settings that are wrong, or that the extension has read already and that are others now.
    """
    if (module := load()) is not None:
        module.configure(*config.for_cpp())


def check_loaded() -> None:
    """Raises what `load` raises, where somebody has imported the extension already; does not import it."""
    if _EXTENSION in sys.modules:
        load()


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    try:
        import torch
    except ImportError as error:
        return None, f"the native extension needs PyTorch, which cannot be imported: {error}."
    if importlib.util.find_spec(_EXTENSION) is None:
        return None, (
            "the native extension agspeed._native is not built for this Python: run `make build`, or install the wheel "
            "for this Python version."
        )
    try:
        module = importlib.import_module(_EXTENSION)
    except ImportError as error:
        return None, _cannot_import(error, torch.__version__)
    built_for = str(module.build_info()["torch"])
    if _release(built_for) != _release(torch.__version__):
        return None, _other_torch(built_for, torch.__version__)
    module.configure(*config.for_cpp())
    return module, ""


def _release(version: str) -> tuple[str, ...]:
    """("2", "11") of "2.11.0+cu130": releases that share a C++ interface."""
    return tuple(version.split("+")[0].split(".")[:2])


def _cannot_import(error: ImportError, torch_version: str) -> str:
    text = " ".join(str(error).split())
    return (
        f"the native extension cannot be loaded into PyTorch {torch_version}, it was probably built for another "
        f"release: rebuild it with `make build` ({text})."
    )


def _other_torch(built_for: str, found: str) -> str:
    return (
        f"the native extension was built for PyTorch {built_for} but {found} is installed: rebuild it with "
        f"`make build`, or install torch {'.'.join(_release(built_for))}."
    )
