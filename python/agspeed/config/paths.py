# SPDX-License-Identifier: Apache-2.0
"""Where settings and caches live: the agspeed.toml files in force, the user's folders, and whether one can be used.

A file counts where only this user or root can have written it: they own it and its folder, and no other user may write
to either. Any other is ignored, with a sentence. Reads only; keeps no state.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["FILE_NAME", "Files", "default_cache_dir", "find_files", "home", "own_file", "why_not_writable"]

FILE_NAME = "agspeed.toml"
_ROOT = 0


class Files(NamedTuple):
    """The agspeed.toml files in force; `ignored` has a sentence for each that is there and does not count."""

    nearest: Path | None
    """In the working directory, or in the nearest folder above it that has one."""
    own: Path | None
    """The user's own, in ~/.config/agspeed."""
    ignored: list[str]


def find_files(environ: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None) -> Files:
    env = os.environ if environ is None else environ
    own = own_file(env)
    ignored: list[str] = []
    near = itertools.takewhile(lambda path: path != own, _candidates(cwd))
    nearest = next((path for path in near if _counts(path, ignored)), None)
    return Files(nearest, own if own is not None and _counts(own, ignored) else None, ignored)


def own_file(env: Mapping[str, str]) -> Path | None:
    """Where the user's own agspeed.toml is looked for; None for a user without a home."""
    folder = _home_folder(env, "XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / FILE_NAME


def default_cache_dir(env: Mapping[str, str]) -> Path:
    """The folder for the cache where no setting names one; for a user without a home, one among temporary files."""
    folder = _home_folder(env, "XDG_CACHE_HOME", ".cache")
    if folder is not None:
        return folder
    temporary = env.get("TMPDIR", "")
    return Path(temporary if os.path.isabs(temporary) else "/tmp") / f"agspeed-{os.geteuid()}"


def home(env: Mapping[str, str]) -> Path | None:
    """The user's home, by HOME or else by the system's list of users; None where neither has one."""
    folder = env.get("HOME", "")
    if not folder:
        import pwd  # where needed: this module is loaded with torch

        try:
            folder = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(folder) if os.path.isabs(folder) else None


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


def _candidates(cwd: str | os.PathLike[str] | None) -> Iterator[Path]:
    """From the working directory up; none where that has been deleted."""
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
    """Whether there is a file that counts; where there is one that does not, `ignored` gets the sentence."""
    try:
        link, info = path.lstat(), path.stat()
        if not stat.S_ISREG(info.st_mode):
            return False
        target = path.resolve()
        folders = {folder: folder.stat() for folder in (path.parent, target.parent)}
    except (OSError, RuntimeError):  # none that can be looked at; links in a circle
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
    """Whether users other than this one and root may write to a file or folder."""
    if stat.S_ISLNK(info.st_mode):
        return False  # a link has no mode of its own
    is_open_to_group = bool(info.st_mode & stat.S_IWGRP) and not _is_private(info.st_gid)
    return is_open_to_group or bool(info.st_mode & stat.S_IWOTH)


def _is_private(group: int) -> bool:
    """Whether a group is root's, or has no member but this user, as the one that many systems make with a user."""
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
    """/proc and /sys say they are writable to root, yet nothing can be created there."""
    return path.parts[1:2] in (("proc",), ("sys",))
