# SPDX-License-Identifier: Apache-2.0
"""Whether an earlier process decided about a model: known from a look at the tuning database, before what reads and
checks that file properly (runtime/tune/store/database.h) is loaded. Nothing that is found here is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agspeed.tuning.database_key import structure_hash

_QUERY = "SELECT record FROM decisions WHERE instr(key, ?)"


def chose_compiled(target: Callable[..., Any], cache_dir: Path) -> bool:
    """True when `cache_dir` may hold a decision for `target`, at any size, that is worth loading a compiler for."""
    path = cache_dir / "tuning.sqlite"
    if not path.is_file():
        return False
    try:
        import sqlite3

        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.1)
        try:
            rows = connection.execute(_QUERY, (f'"graph":"{structure_hash(target)}"',)).fetchall()
        finally:
            connection.close()
        return any(json.loads(record)["arm"] not in ("eager", "") for (record,) in rows)
    except Exception:  # no database of ours, or a damaged one: its reader will say so once it is loaded
        return False
