# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the table of decisions without torch and without the native extension, whose own reader is
runtime/tune/store/database.h. The format is in runtime/tune/store/database_format.md.

Nothing here is executed. Each row is checked before it is used. An invalid row is never repaired.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agspeed import bounded_json
from agspeed.config.paths import DATABASE
from agspeed.errors import UserError
from agspeed.files import make_folder
from agspeed.regions.plan import is_plan
from agspeed.reporting.parts import Json

_TIMEOUT_S = 2.0
_APPLICATION_ID = 0x41475344
_DATABASE_VERSION = 1
_MAX_KEY_BYTES = 64 << 10
_MAX_RECORD_BYTES = 1 << 20
_LATEST_TIME = 253_402_300_799
_MAX_USES = 1 << 53
_DAMAGES = (sqlite3.Error, UnicodeDecodeError)  # SQLite quotes damaged bytes in its messages
_TOO_LARGE = "is larger than the format allows"
_KEY_MEMBERS = ("graph", "shapes", "dtypes", "device", "threads", "isa", "versions")
_READ = (
    f"SELECT CASE WHEN length(key) > {_MAX_KEY_BYTES} THEN substr(key, 1, {_MAX_KEY_BYTES + 1}) ELSE key END, "
    f"CASE WHEN length(record) > {_MAX_RECORD_BYTES} THEN substr(record, 1, {_MAX_RECORD_BYTES + 1}) ELSE record END, "
    "created, used, uses, crc32 FROM decisions WHERE instr(key, ?) ORDER BY used DESC"
)
"""Reads no more of a text than shows that it is too large."""
_CREATE = (
    "CREATE TABLE IF NOT EXISTS decisions(key TEXT PRIMARY KEY NOT NULL, record TEXT NOT NULL, crc32 INTEGER NOT NULL, "
    "created INTEGER NOT NULL, used INTEGER NOT NULL, uses INTEGER NOT NULL)"
)


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

    def parsed(self) -> tuple[Json, Json]:
        """Returns the key and the record. Requires: `check_decision` found no error."""
        return bounded_json.loads(self.key), bounded_json.loads(self.record)

    @property
    def crc32(self) -> int:
        return zlib.crc32(self.key.encode() + b"\0" + self.record.encode())


def check_decision(decision: Decision) -> str | None:
    """Returns why the row is invalid, or None."""
    if _is_too_large(decision):
        return _TOO_LARGE
    try:
        key, record = decision.parsed()
    except ValueError:
        return "is not JSON"
    if not isinstance(key, dict) or any(member not in key for member in _KEY_MEMBERS):
        return f"lacks one of the key's members {', '.join(_KEY_MEMBERS)}"
    if not isinstance(record, dict) or not isinstance(record.get("arm"), str):
        return "has no decision (the member `arm`)"
    if record["arm"] and not is_plan(record["arm"]):
        return f"names {record['arm'][:80]!r}, which is not a plan"
    bounds = ((decision.created, _LATEST_TIME), (decision.used, _LATEST_TIME), (decision.uses, _MAX_USES))
    if any(type(value) is not int or not 0 <= value <= most for value, most in bounds):
        return "has times or counts that are not whole numbers, or that no clock shows"
    return None


def _is_too_large(decision: Decision) -> bool:
    return len(decision.key.encode()) > _MAX_KEY_BYTES or len(decision.record.encode()) > _MAX_RECORD_BYTES


def _opened(cache_dir: Path, timeout_s: float = _TIMEOUT_S) -> sqlite3.Connection | None:
    """Opens the database read-only; returns None if there is none. Raises: UserError if it is not a tuning database."""
    path = cache_dir / DATABASE
    if not path.is_file():
        return None
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=timeout_s)
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except _DAMAGES as error:
        raise UserError(f"{path} cannot be read: {error}. Remove it to start with an empty cache.") from None
    if application != _APPLICATION_ID or version != _DATABASE_VERSION:
        connection.close()
        raise UserError(f"{path} is not a tuning database of version {_DATABASE_VERSION}: agspeed leaves it alone.")
    return connection


def read_decisions(
    cache_dir: Path, *, containing: str = "", timeout_s: float = _TIMEOUT_S
) -> Iterator[tuple[Decision, str | None]]:
    """Yields each row with the reason why it is invalid, or None, from the latest used one on.

    Args:
        containing: yields only rows whose key contains this text.
        timeout_s: how long another process may lock the database.

    Raises: UserError if the file cannot be read, or is not a tuning database.
    """
    connection = _opened(cache_dir, timeout_s)
    if connection is None:
        return
    with closing(connection):
        try:
            for *fields, crc32 in connection.execute(_READ, (containing,)):
                yield _checked_row(fields, crc32)
        except _DAMAGES as error:
            raise UserError(f"{cache_dir / DATABASE} is damaged: {error}. Remove it to start anew.") from None


def _checked_row(fields: list[Any], crc32: object) -> tuple[Decision, str | None]:
    if not all(isinstance(text, str) for text in fields[:2]):
        return Decision("", "", 0, 0, 0), "is not text"
    decision = Decision(*fields)
    try:
        if _is_too_large(decision):
            return decision, _TOO_LARGE
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
        connection = _opened(cache_dir)
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


def remove_decisions(cache_dir: Path, keys: Iterable[str]) -> None:
    """Removes the rows with these keys. Requires: the database exists."""
    with closing(sqlite3.connect(cache_dir / DATABASE, timeout=5)) as database, database:
        database.executemany("DELETE FROM decisions WHERE key = ?", [(key,) for key in keys])
