# SPDX-License-Identifier: Apache-2.0
"""Peeks into the tuning database before its real reader (runtime/tune/store/database.h) is loaded, and validates its
records. Does not trust the file's content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agspeed import bounded_json
from agspeed.tuning.database_key import structure_hash
from agspeed.tuning.plan import is_plan

_QUERY = "SELECT record FROM decisions WHERE instr(key, ?) AND length(record) <= ?"
_MAX_RECORD_BYTES = 1 << 20
_MAX_CAPTURE_S = 1e6


def chose_compiled(target: Callable[..., Any], cache_dir: Path) -> bool:
    """Returns True if `cache_dir` may hold a decision for `target`, at any size, that is not eager. Loading a compiler
    is then worthwhile."""
    path = cache_dir / "tuning.sqlite"
    if not path.is_file():
        return False
    try:
        import sqlite3

        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.1)
        try:
            wanted = (f'"graph":"{structure_hash(target)}"', _MAX_RECORD_BYTES)
            rows = connection.execute(_QUERY, wanted).fetchall()
        finally:
            connection.close()
        return any(bounded_json.loads(record)["arm"] not in ("eager", "") for (record,) in rows)
    except Exception:  # another file or a damaged database: the real reader will report it
        return False


def why_no_record(record: Mapping[str, Any]) -> str | None:
    """Returns why a record of the database is invalid, as the end of a sentence; None if it is valid."""
    arm, seconds = record.get("arm"), record.get("capture_seconds")
    if arm != "" and not is_plan(arm):
        return f"names {str(arm)[:80]!r}, which is no plan"
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds <= _MAX_CAPTURE_S):
        return f"says that capturing took {str(seconds)[:40]} s"
    return None
