# SPDX-License-Identifier: Apache-2.0
"""Finds the agspeed.toml files in force and the user's folders, and checks whether a folder can be used.

A file is used only if no one but this user or root can have written it: they own it and its folder, and no other user
may write to either. Other files are ignored, with a sentence that says why. Only reads; keeps no state.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["DATABASE", "FILE_NAME", "Files", "default_cache_dir", "find_files", "home", "own_file", "why_not_writable"]

DATABASE = "tuning.sqlite"
"""The database of decisions in a cache directory."""
FILE_NAME = "agspeed.toml"
_ROOT = 0


class Files(NamedTuple):
    """The agspeed.toml files in force; `ignored` has a sentence for each existing file that is not used."""

    nearest: Path | None
    """The file in the working directory, or in the nearest folder above it that has one."""
    own: Path | None
    """The user's own file, in ~/.config/agspeed."""
    ignored: list[str]


def find_files(environ: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None) -> Files:
    env = os.environ if environ is None else environ
    own = own_file(env)
    ignored: list[str] = []
    near = itertools.takewhile(lambda path: path != own, _candidates(cwd))
    nearest = next((path for path in near if _counts(path, ignored)), None)
    return Files(nearest, own if own is not None and _counts(own, ignored) else None, ignored)


def own_file(env: Mapping[str, str]) -> Path | None:
    """Returns the path of the user's own agspeed.toml, which may not exist; None for a user without a home folder."""
    folder = _home_folder(env, "XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / FILE_NAME


def default_cache_dir(env: Mapping[str, str]) -> Path:
    """Returns the cache folder if no setting names one. For a user without a home folder it is a temporary folder."""
    folder = _home_folder(env, "XDG_CACHE_HOME", ".cache")
    if folder is not None:
        return folder
    temporary = env.get("TMPDIR", "")
    return Path(temporary if os.path.isabs(temporary) else "/tmp") / f"agspeed-{os.geteuid()}"


def home(env: Mapping[str, str]) -> Path | None:
    """Returns the user's home folder, from HOME or else from the system's list of users; None if neither has one."""
    folder = env.get("HOME", "")
    if not folder:
        import pwd  # imported only if needed: this module is loaded together with torch

        try:
            folder = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(folder) if os.path.isabs(folder) else None


def why_not_writable(folder: Path) -> str | None:
    """Returns why files cannot be created in `folder`, as the end of a sentence; None if they can.

    If the folder does not exist yet, its nearest existing parent must allow creating it.
    """
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"{str(existing)!r} is not a directory"
    if not os.access(existing, os.W_OK | os.X_OK) or _is_kernel_filesystem(existing):
        return f"{str(existing)!r} cannot be written"
    return None


def _candidates(cwd: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yields paths from the working directory upwards; nothing if that directory has been deleted."""
    try:
        start = Path(cwd or os.getcwd()).absolute()
    except FileNotFoundError:
        return
    for folder in (start, *start.parents):
        yield folder / FILE_NAME


def _home_folder(env: Mapping[str, str], variable: str, fallback: str) -> Path | None:
    base = env.get(variable, "")
    if os.path.isabs(base):
        return Path(base) / "agspeed"
    folder = home(env)
    return None if folder is None else folder / fallback / "agspeed"


def _counts(path: Path, ignored: list[str]) -> bool:
    """Returns whether a file exists and may be used. If it exists and may not, adds a sentence to `ignored`."""
    try:
        link, info = path.lstat(), path.stat()
        if not stat.S_ISREG(info.st_mode):
            return False
        target = path.resolve()
        folders = {folder: folder.stat() for folder in (path.parent, target.parent)}
    except (OSError, RuntimeError):  # no accessible file, or a cycle of links
        return False
    places = [("it", link), *((str(each), has) for each, has in {target: info, **folders}.items() if each != path)]
    foreign = (f"{name} belongs to user {has.st_uid}" for name, has in places if _is_foreign(has))
    shared = (f"other users may write to {name}" for name, has in places if is_open(has))
    reason = next(itertools.chain(foreign, shared), None)
    if reason is not None:
        ignored.append(
            f"{path} is ignored because {reason}: it counts only where you or root own it and its folder, and no "
            "other user may write to them"
        )
    return reason is None


def _is_foreign(info: os.stat_result) -> bool:
    return info.st_uid not in (os.geteuid(), _ROOT)


def is_open(info: os.stat_result) -> bool:
    """Returns whether users other than this one and root may write to a file or folder."""
    if stat.S_ISLNK(info.st_mode):
        return False  # the mode of a link has no effect
    is_open_to_group = bool(info.st_mode & stat.S_IWGRP) and not _is_private(info.st_gid)
    return is_open_to_group or bool(info.st_mode & stat.S_IWOTH)


def _is_private(group: int) -> bool:
    """Returns whether a group is root's or has only this user as a member, like the group that many systems create with
    a user."""
    if group == _ROOT:
        return True
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _is_kernel_filesystem(path: Path) -> bool:
    """Returns True for /proc and /sys: they look writable to root, but nothing can be created there."""
    return path.parts[1:2] in (("proc",), ("sys",))
