# SPDX-License-Identifier: Apache-2.0
"""agspeed cache reads files that anyone may have written. It refuses each with a sentence, or treats it as its own."""

from __future__ import annotations

import json
import os
import random
import secrets
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from agspeed.cli import cache_files
from agspeed.tuning import decision_table
from tests.python.support.cache_content import KEY, RECORD, ROW, archive, decision, lines

ROUNDS = 80


def rewrite(folder: Path, **columns: object) -> None:
    """Sets columns of every row and updates the checksum as the writer would."""
    with closing(sqlite3.connect(folder / "tuning.sqlite")) as database, database:
        for (key,) in database.execute("SELECT key FROM decisions").fetchall():
            changed = dict(columns)
            if isinstance(record := changed.get("record"), str):
                changed["crc32"] = zlib.crc32(f"{key}\0{record}".encode())
            for name, value in changed.items():
                database.execute(f"UPDATE decisions SET {name} = ? WHERE key = ?", (value, key))


@pytest.mark.parametrize("arm", ["native+rX:native", "native+r1", "a/b/c", "native/b1", "a\nb", "+r1:a", "a" * 200])
def test_a_name_that_is_no_plan_is_no_decision(agspeed, cache, tmp_path, arm):
    packed = archive(tmp_path / "bad.zip", {"decisions.jsonl": lines(ROW | {"record": RECORD | {"arm": arm}})})
    result = agspeed("cache", "--cache-dir", tmp_path / "new", "import", "--decisions-only", packed)
    assert result.code == 2 and "which is not a plan" in result.err
    rewrite(cache, record=json.dumps(RECORD | {"arm": arm}))
    verified = agspeed("cache", "--cache-dir", cache, "verify")
    assert verified.code == 1 and "which is not a plan" in verified.out
    assert "0 decisions" in agspeed("cache", "--cache-dir", cache, "ls").out


@pytest.mark.parametrize("arm", ["eager", "native", "inductor+r2:native", "native/b0.25-8", "size 64 MiB", ""])
def test_names_of_plans_are_taken(agspeed, tmp_path, arm):
    packed = archive(tmp_path / "good.zip", {"decisions.jsonl": lines(ROW | {"record": RECORD | {"arm": arm}})})
    assert agspeed("cache", "--cache-dir", tmp_path / "new", "import", packed).code == 0


@pytest.mark.parametrize("column", ["used", "created", "uses"])
@pytest.mark.parametrize("value", [1 << 62, -1, 2.5, "soon", b"blob", None])
def test_times_that_no_clock_shows_break_nothing(agspeed, cache, column, value):
    if value is not None:  # the table accepts no NULL
        rewrite(cache, **{column: value})
    for action in (("ls",), ("ls", "--json"), ("verify",), ("prune", "--dry-run")):
        assert agspeed("cache", "--cache-dir", cache, *action).code == (value is not None and action[0] == "verify")


@pytest.mark.parametrize("created", [1 << 62, 1 << 70, 10**30, -1, 1.5, True, "soon", None])
def test_an_archive_with_such_a_time_is_refused(agspeed, tmp_path, created):
    packed = archive(tmp_path / "bad.zip", {"decisions.jsonl": lines(ROW | {"created": created})})
    result = agspeed("cache", "--cache-dir", tmp_path / "new", "import", packed)
    assert result.code == 2 and "decisions.jsonl" in result.err


def test_a_time_to_come_keeps_no_later_decision_out(agspeed, tmp_path):
    cache = tmp_path / "cache"
    for arm, created in (("native", 90_000_000_000), ("aot", 91_000_000_000)):
        row = ROW | {"record": RECORD | {"arm": arm}, "created": created}
        packed = archive(tmp_path / f"{arm}.zip", {"decisions.jsonl": lines(row)})
        assert agspeed("cache", "--cache-dir", cache, "import", packed).code == 0
    decision_table.write_decisions(cache, [decision(created=2**40)])
    assert all(found.created < 2**32 for found, _ in decision_table.read_decisions(cache))


def test_a_record_nested_deep_is_no_record(agspeed, cache, tmp_path):
    deep = "[" * 200_000 + "]" * 200_000
    text = b'{"format":"agspeed-tuning","version":1}\n{"record":' + deep.encode() + b"}\n"
    packed = archive(tmp_path / "deep.zip", {"decisions.jsonl": text})
    result = agspeed("cache", "--cache-dir", tmp_path / "new", "import", packed)
    assert result.code == 2 and "nested more than 100 deep" in result.err
    rewrite(cache, record='{"arm":"native","reason":' + deep + "}")
    assert "0 decisions" in agspeed("cache", "--cache-dir", cache, "ls").out


def test_a_kernel_of_terabytes_is_named_and_not_read(agspeed, cache):
    first, _ = cache_files.kernel_paths(cache)
    os.truncate(first, 2 << 40)
    result = agspeed("cache", "--cache-dir", cache, "verify")
    assert result.code == 1 and "is larger than 256 MiB" in result.out


def test_a_file_is_no_cache_and_nan_no_number_of_days(agspeed, cache, tmp_path):
    (tmp_path / "file").write_text("")
    result = agspeed("cache", "--cache-dir", tmp_path / "file", "ls")
    assert result.code == 2 and "is not a directory" in result.err
    assert agspeed("cache", "--cache-dir", cache, "prune", "--days", "nan").code == 2


def test_files_of_torchs_compiler_are_pruned_like_kernels(agspeed, cache):
    old, new = cache / "inductor" / "ab" / "old.so", cache / "inductor" / "cd" / "new.so"
    for path in (old, new):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"code")
    os.utime(old, (1, 1))
    listed = agspeed("cache", "--cache-dir", cache, "ls").out
    assert "2 files of torch's compiler of 8 B" in " ".join(listed.split())
    assert "Removed 1 file of torch's compiler (4 B)" in agspeed("cache", "--cache-dir", cache, "prune").out
    assert not old.parent.exists() and new.exists()
    agspeed("cache", "--cache-dir", cache, "prune", "--all")
    assert not new.exists() and cache_files.kernel_paths(cache) == []


def spoiled(data: bytes, chance: random.Random) -> bytes:
    """Returns the data with some bytes changed, lost, repeated or inserted."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0 if at < len(changed):
                changed[at] = chance.randrange(256)
            case 1:
                del changed[at : at + chance.randrange(30)]
            case 2:
                changed[at:at] = chance.randbytes(chance.randrange(20))
            case _:
                begin = chance.randrange(len(changed) + 1)
                changed[at:at] = changed[begin : begin + chance.randrange(40)]
    return bytes(changed)


def test_spoiled_archives_are_refused_with_a_sentence(agspeed, cache, tmp_path):
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    good = tmp_path / "good.zip"
    agspeed("cache", "--cache-dir", cache, "export", good)
    text = lines(ROW, ROW | {"key": KEY | {"graph": "other"}})
    for number in range(ROUNDS):
        packed = tmp_path / "bad.zip"
        if number % 2:
            packed.write_bytes(spoiled(good.read_bytes(), chance))
        else:
            archive(packed, {"decisions.jsonl": spoiled(text, chance)})
        result = agspeed("cache", "--cache-dir", tmp_path / "new", "import", "--decisions-only", packed)
        assert result.code in (0, 2), f"seed {seed}, round {number}: {result.err}"
        if result.code == 2:
            assert result.err.count("\n") <= 3 and "Traceback" not in result.err, f"seed {seed}, round {number}"
    verified = agspeed("cache", "--cache-dir", tmp_path / "new", "verify")
    assert verified.code == 0, f"seed {seed}: {verified.out}"


def test_spoiled_databases_break_nothing(agspeed, cache):
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    path = cache / "tuning.sqlite"
    good = path.read_bytes()
    for number in range(ROUNDS):
        path.write_bytes(spoiled(good, chance))
        for action in ("ls", "verify"):
            result = agspeed("cache", "--cache-dir", cache, action)
            assert result.code in (0, 1, 2), f"seed {seed}, round {number}: {result.err}"
