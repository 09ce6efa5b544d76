# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the files of a cache directory, without torch and without the native extension.

    <cache_dir>/tuning.sqlite          decisions (`tuning/decision_table.py`)
    <cache_dir>/kernels/<hash>.agk     compiled kernels; format in runtime/kernel_cache.md
    <cache_dir>/inductor/...           files of torch's compiler; never read here

Nothing here is unpickled or executed. Every file is checked before it is used. Invalid ones are reported as a `Problem`
and never repaired or imported.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "KERNELS",
    "Problem",
    "check_kernel",
    "compiler_files",
    "distrust",
    "kernel_name",
    "kernel_paths",
    "read_kernel",
]

KERNELS = "kernels"
KERNEL_SUFFIX = ".agk"
COMPILER = "inductor"

_MAX_KERNEL_BYTES = 256 << 20
_KERNEL_HEADER = struct.Struct("=8sIIQQQ")
_KERNEL_MAGIC = b"AGKERNEL"
_KERNEL_VERSION = 1
_FNV_START, _FNV_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


class Problem(NamedTuple):
    """An error in a cache: its place, and what is wrong."""

    where: str
    what: str


def kernel_paths(cache_dir: Path) -> list[Path]:
    """Returns the kernel files, sorted by name, without links and other kinds of files."""
    folder = cache_dir / KERNELS
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.glob(f"*{KERNEL_SUFFIX}") if path.is_file() and not path.is_symlink())


def compiler_files(cache_dir: Path) -> list[Path]:
    """Returns the files of torch's compiler, without links."""
    found = (Path(folder) / name for folder, _, names in os.walk(cache_dir / COMPILER) for name in names)
    return [path for path in found if path.is_file() and not path.is_symlink()]


def read_kernel(path: Path) -> bytes:
    """Returns the content of a kernel file, cut just above the size limit. Raises: OSError."""
    with path.open("rb") as file:
        return file.read(_MAX_KERNEL_BYTES + 1)


def check_kernel(name: str, data: bytes) -> str | None:
    """Returns why a kernel file with this name and content is invalid, or None."""
    if len(data) < _KERNEL_HEADER.size:
        return "is truncated"
    if len(data) > _MAX_KERNEL_BYTES:
        return f"is larger than {_MAX_KERNEL_BYTES >> 20} MiB"
    magic, version, _, key_bytes, payload_bytes, checksum = _KERNEL_HEADER.unpack_from(data)
    if magic != _KERNEL_MAGIC or version != _KERNEL_VERSION:
        return f"is not a kernel of format version {_KERNEL_VERSION}"
    body = data[_KERNEL_HEADER.size :]
    if key_bytes + payload_bytes != len(body):
        return "has a wrong length"
    if _fnv(body, _FNV_START) != checksum:
        return "has a wrong checksum"
    if kernel_name(body[:key_bytes]) != name:
        return "has a name that does not belong to its key"
    return None


def kernel_name(key: bytes) -> str:
    """Returns the file name under which the compiler looks for `key`."""
    first = _fnv(key, _FNV_START)
    return f"{first:016x}{_fnv(key, first ^ len(key)):016x}{KERNEL_SUFFIX}"


def _fnv(data: bytes, state: int) -> int:
    for byte in data:
        state = (state ^ byte) * _FNV_PRIME & _MASK
    return state


def distrust(path: Path) -> str | None:
    """Returns why agspeed would not use this file or directory, or None. It uses only files that the user owns and that
    no other user can write."""
    try:
        info = path.lstat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if info.st_uid != os.geteuid():
        return f"belongs to user {info.st_uid}, not to you"
    is_shared_folder = stat.S_ISDIR(info.st_mode) and path.name != KERNELS
    writers = stat.S_IWOTH if is_shared_folder else stat.S_IWOTH | stat.S_IWGRP
    if info.st_mode & writers and not stat.S_ISLNK(info.st_mode):
        return f"can be written by others (mode {stat.S_IMODE(info.st_mode):04o})"
    return None
