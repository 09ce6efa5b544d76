# SPDX-License-Identifier: Apache-2.0
"""Where settings and caches live: the agspeed.toml files in force, the user's folders, and whether one can be used.

A file in a directory that everybody may write to counts only when this user owns it. Reads only; keeps no state.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

__all__ = ["FILE_NAME", "default_cache_dir", "find_files", "why_not_writable"]

FILE_NAME = "agspeed.toml"


def find_files(environ: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None) -> list[Path]:
    """The agspeed.toml files in force, nearest first: at most one from the working directory up, one of the user."""
    env = os.environ if environ is None else environ
    found = next((path for path in _candidates(cwd) if _is_trusted_file(path)), None)
    own = _home_folder(env, "XDG_CONFIG_HOME", ".config") / FILE_NAME
    files = [] if found is None else [found]
    return files + ([own] if own != found and own.is_file() else [])


def default_cache_dir(env: Mapping[str, str]) -> Path:
    """The folder for the cache where no setting names one."""
    return _home_folder(env, "XDG_CACHE_HOME", ".cache").absolute()


def why_not_writable(folder: Path) -> str | None:
    """What is wrong with `folder`, as the end of a sentence; None where files can be made in it.

    It may not exist yet: then its nearest existing parent must allow creating it.
    """
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"{str(existing)!r} is not a directory"
    if not os.access(existing, os.W_OK | os.X_OK) or _is_kernel_filesystem(existing):
        return f"{str(existing)!r} cannot be written"
    return None


def _candidates(cwd: str | os.PathLike[str] | None) -> list[Path]:
    """From the working directory up; none where that has been deleted."""
    try:
        start = Path(cwd or os.getcwd()).absolute()
    except FileNotFoundError:
        return []
    return [folder / FILE_NAME for folder in (start, *start.parents)]


def _home_folder(env: Mapping[str, str], variable: str, fallback: str) -> Path:
    base = env.get(variable, "")
    if not os.path.isabs(base):
        base = os.path.join(env.get("HOME") or os.path.expanduser("~"), fallback)
    return Path(base) / "agspeed"


def _is_trusted_file(path: Path) -> bool:
    try:
        folder_mode = path.parent.stat().st_mode
        info = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and (not folder_mode & stat.S_IWOTH or info.st_uid == os.geteuid())


def _is_kernel_filesystem(path: Path) -> bool:
    """/proc and /sys say they are writable to root, yet nothing can be created there."""
    return path.parts[1:2] in (("proc",), ("sys",))
