# SPDX-License-Identifier: Apache-2.0
"""Loads the native extension once. If that fails, it keeps one sentence that says why.

``import agspeed`` and the eager path work without it: callers call ``load()`` and fall back if it returns None. There
is one extension for each release of torch (`native_files.py`), because torch's C++ interface changes between releases.

Thread-safety: any thread may call; the first call does the work under the import lock.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType

from agspeed import config
from agspeed.native_files import extension_for

__all__ = ["check_loaded", "configure", "load", "why_missing"]

_EXTENSION = "agspeed._native"


def load() -> ModuleType | None:
    """Returns the extension, or None; then `why_missing` says why. Raises: as `configure`, until it has succeeded."""
    return _load()[0]


def why_missing() -> str:
    """Returns one sentence that says why the extension is missing and what to do; "" when it is loaded."""
    return _load()[1]


def configure() -> None:
    """Passes the settings to the extension again, for variables that were set since it was loaded.

    Raises: UserError for wrong settings, and for changed settings that the extension has already read.
    """
    if (module := load()) is not None:
        module.configure(*config.for_cpp())


def check_loaded() -> None:
    """Raises what `load` raises if the extension has already been imported; does not import it."""
    if _EXTENSION in sys.modules:
        load()


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    try:
        import torch
    except ImportError as error:
        return None, f"the native extension needs PyTorch, which cannot be imported: {error}."
    path, why_not = extension_for(torch.__version__)
    if path is None:
        return None, why_not
    try:
        module = importlib.import_module(_EXTENSION)
    except ImportError as error:
        text = " ".join(str(error).split())
        return None, (
            f"the native extension {path.name} cannot be loaded into torch {torch.__version__}: rebuild it with "
            f"`make build`, or install the wheel again ({text})."
        )
    module.configure(*config.for_cpp())
    return module, ""
