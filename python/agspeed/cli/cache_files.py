# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the files of a cache directory with the standard library alone.

    <cache_dir>/tuning.sqlite          decisions; format in runtime/tune/store/database_format.md
    <cache_dir>/kernels/<hash>.agk     compiled kernels; format in runtime/kernel_cache.md
    <cache_dir>/inductor/...           files of torch's compiler; never read here

Nothing here is unpickled or executed. Every row and file is checked before it is used. Invalid ones are reported as a
`Problem` and never repaired or imported.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from agspeed import bounded_json
from agspeed.errors import UserError
from agspeed.files import make_folder
from agspeed.tuning.plan import is_plan

__all__ = [
    "DATABASE",
    "KERNELS",
    "Decision",
    "Problem",
    "check_decision",
    "check_kernel",
    "compiler_files",
    "distrust",
    "kernel_name",
    "kernel_paths",
    "open_database",
    "read_decisions",
    "read_kernel",
    "write_decisions",
]

DATABASE = "tuning.sqlite"
KERNELS = "kernels"
KERNEL_SUFFIX = ".agk"
COMPILER = "inductor"

_APPLICATION_ID = 0x41475344
_DATABASE_VERSION = 1
_MAX_KEY_BYTES = 64 << 10
_MAX_RECORD_BYTES = 1 << 20
_LATEST_TIME = 253_402_300_799
_MAX_USES = 1 << 53
_MAX_KERNEL_BYTES = 256 << 20
_KEY_MEMBERS = ("graph", "shapes", "dtypes", "device", "threads", "isa", "versions")
_CREATE = (
    "CREATE TABLE IF NOT EXISTS decisions(key TEXT PRIMARY KEY NOT NULL, record TEXT NOT NULL, crc32 INTEGER NOT NULL, "
    "created INTEGER NOT NULL, used INTEGER NOT NULL, uses INTEGER NOT NULL)"
)
_KERNEL_HEADER = struct.Struct("=8sIIQQQ")
_KERNEL_MAGIC = b"AGKERNEL"
_KERNEL_VERSION = 1
_FNV_START, _FNV_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


class Problem(NamedTuple):
    """An error in a cache: its place, and what is wrong."""

    where: str
    what: str


@dataclass(frozen=True)
class Decision:
    """One row of tuning.sqlite; `key` and `record` are the stored texts."""

    key: str
    record: str
    created: int
    used: int
    uses: int

    @property
    def is_unfinished(self) -> bool:
        """Whether this is a tuning that has not decided yet. Requires: `check_decision` found no error."""
        return bool(self.parsed()[1]["arm"] == "")

    def parsed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the key and the record. Requires: `check_decision` found no error."""
        return bounded_json.loads(self.key), bounded_json.loads(self.record)

    @property
    def crc32(self) -> int:
        return zlib.crc32(self.key.encode() + b"\0" + self.record.encode())


def check_decision(decision: Decision) -> str | None:
    """Returns why the row is invalid, or None."""
    if len(decision.key.encode()) > _MAX_KEY_BYTES or len(decision.record.encode()) > _MAX_RECORD_BYTES:
        return "is larger than the format allows"
    try:
        key, record = decision.parsed()
    except ValueError:
        return "is not JSON"
    if not isinstance(key, dict) or any(member not in key for member in _KEY_MEMBERS):
        return f"lacks one of the key's members {', '.join(_KEY_MEMBERS)}"
    if not isinstance(record, dict) or not isinstance(record.get("arm"), str):
        return "has no decision (the member `arm`)"
    if record["arm"] and not is_plan(record["arm"]):
        return f"names {record['arm'][:80]!r}, which is no plan"
    bounds = ((decision.created, _LATEST_TIME), (decision.used, _LATEST_TIME), (decision.uses, _MAX_USES))
    if any(type(value) is not int or not 0 <= value <= most for value, most in bounds):
        return "has times or counts that are not whole numbers, or that no clock shows"
    return None


def open_database(cache_dir: Path) -> sqlite3.Connection | None:
    """Opens the database read-only; returns None if there is none. Raises: UserError if it is not a tuning database."""
    path = cache_dir / DATABASE
    if not path.is_file():
        return None
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2)
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise UserError(f"{path} cannot be read: {error}. Remove it to start with an empty cache.") from None
    if application != _APPLICATION_ID or version != _DATABASE_VERSION:
        connection.close()
        raise UserError(f"{path} is not a tuning database of version {_DATABASE_VERSION}: agspeed leaves it alone.")
    return connection


def read_decisions(cache_dir: Path) -> Iterator[tuple[Decision, str | None]]:
    """Yields every row with the reason why it is invalid, or None."""
    connection = open_database(cache_dir)
    if connection is None:
        return
    with closing(connection):
        try:
            rows = connection.execute(
                "SELECT key, record, created, used, uses, crc32 FROM decisions ORDER BY used DESC"
            )
            for *fields, crc32 in rows:
                yield _checked_row(fields, crc32)
        except sqlite3.Error as error:
            raise UserError(f"{cache_dir / DATABASE} is damaged: {error}. Remove it to start anew.") from None


def _checked_row(fields: list[Any], crc32: Any) -> tuple[Decision, str | None]:
    if not all(isinstance(text, str) for text in fields[:2]):
        return Decision("", "", 0, 0, 0), "is not text"
    decision = Decision(*fields)
    try:
        if crc32 != decision.crc32:
            return decision, "has a wrong checksum"
        return decision, check_decision(decision)
    except UnicodeEncodeError:
        return Decision("", "", 0, 0, 0), "is not text"


def write_decisions(cache_dir: Path, decisions: list[Decision]) -> int:
    """Merges checked rows into the database; for equal keys the newer row stays. A time in the future is replaced by
    now, so that it cannot block later rows. Returns the number of written rows."""
    now = int(time.time())
    decisions = [replace(d, created=min(d.created, now), used=min(d.used, now)) for d in decisions]
    path = cache_dir / DATABASE
    make_folder(cache_dir)
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    elif path.stat().st_size:
        connection = open_database(cache_dir)
        if connection is not None:
            connection.close()
    with closing(sqlite3.connect(path, timeout=5)) as database, database:
        database.execute(f"PRAGMA application_id={_APPLICATION_ID}")
        database.execute(f"PRAGMA user_version={_DATABASE_VERSION}")
        database.execute(_CREATE)
        before = database.total_changes
        database.executemany(
            "INSERT INTO decisions(key, record, crc32, created, used, uses) VALUES(?, ?, ?, ?, ?, ?) "
            "ON CONFLICT(key) DO UPDATE SET record=excluded.record, crc32=excluded.crc32, created=excluded.created, "
            "used=excluded.used, uses=excluded.uses WHERE excluded.created > decisions.created",
            [(d.key, d.record, d.crc32, d.created, d.used, d.uses) for d in decisions],
        )
        return database.total_changes - before


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
