# SPDX-License-Identifier: Apache-2.0
"""Rows of a tuning database that another program has changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agspeed.config.paths import DATABASE
from agspeed.errors import UserError
from agspeed.tuning import decision_table
from tests.python.support.cache_content import decision


def test_a_row_of_any_size_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    decision_table.write_decisions(tmp_path, [decision(), decision("77aa")])
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database, database:
        database.execute("UPDATE decisions SET record = printf('%.*c', ?, 'x') WHERE instr(key, '77aa')", (50 << 20,))
    rows = {row.key: (row, problem) for row, problem in decision_table.read_decisions(tmp_path)}
    assert rows[decision().key] == (decision(), None)
    row, problem = rows[decision("77aa").key]
    assert problem == "is larger than the format allows" and len(row.record) < 2 << 20
    assert [problem for _, problem in decision_table.read_decisions(tmp_path, containing="9c1f")] == [None]


def test_damage_that_sqlite_quotes_in_its_message_is_a_sentence(tmp_path: Path) -> None:
    decision_table.write_decisions(tmp_path, [decision()])
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection, connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute("UPDATE sqlite_master SET name = CAST(x'6465638D' AS TEXT), sql = 'CREATE TABLE 1'")
    with pytest.raises(UserError, match=r"is damaged|cannot be read"):
        list(decision_table.read_decisions(tmp_path))
