# SPDX-License-Identifier: Apache-2.0
"""Peeks into the tuning database before its real reader (runtime/tune/store/database.h) is loaded, and validates its
records. Does not trust the file's content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agspeed.config.paths import DATABASE
from agspeed.regions.plan import EAGER, is_plan
from agspeed.reporting.parts import Json
from agspeed.tuning.database_key import structure_hash

_TIMEOUT_S = 0.1
"""Training does not wait longer than this for a process that locks the database."""
_MAX_CAPTURE_S = 1e6


def chose_compiled(target: Callable[..., object], cache_dir: Path) -> bool:
    """Returns True if `cache_dir` may hold a decision for `target`, at any size, that is not eager. Loading a compiler
    is then worthwhile."""
    if not (cache_dir / DATABASE).is_file():
        return False
    try:
        from agspeed.tuning.decision_table import read_decisions

        graph = f'"graph":"{structure_hash(target)}"'
        rows = read_decisions(cache_dir, containing=graph, timeout_s=_TIMEOUT_S)
        return any(row.parsed()[1]["arm"] not in (EAGER, "") for row, problem in rows if problem is None)
    except Exception:  # another file or a damaged database: the real reader will report it
        return False


def why_no_record(record: Json) -> str | None:
    """Returns why a record of the database is invalid, as the end of a sentence; None if it is valid."""
    arm, seconds = record.get("arm"), record.get("capture_seconds")
    if arm != "" and not is_plan(arm):
        return f"names {str(arm)[:80]!r}, which is not a plan"
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds <= _MAX_CAPTURE_S):
        return f"says that capturing took {str(seconds)[:40]} s"
    return None
