# SPDX-License-Identifier: Apache-2.0
"""agspeed cache: round trips, and all hostile or damaged content that an archive or a cache may have."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import struct
import zipfile
from contextlib import closing

import pytest

from agspeed.cli import cache_files
from agspeed.tuning import decision_table
from tests.python.support.cache_content import RECORD, ROW, archive, decision, kernel, lines, manifest

NAME, KERNEL = kernel(b"key one", b"code")


def test_list(agspeed, cache):
    result = agspeed("cache", "--cache-dir", cache, "ls")
    assert "2 decisions, 2 kernels" in result.out and "native" in result.out
    document = json.loads(agspeed("cache", "--cache-dir", cache, "ls", "--json").out)
    assert [row["record"] for row in document["decisions"]] == [RECORD, RECORD]
    assert document["kernels"] == 2


def test_missing_cache_is_an_empty_one(agspeed, tmp_path):
    folder = tmp_path / "none"
    assert "0 decisions, 0 kernels" in agspeed("cache", "--cache-dir", folder, "ls").out
    assert agspeed("cache", "--cache-dir", folder, "verify").code == 0
    assert agspeed("cache", "--cache-dir", folder, "prune", "--all").code == 0
    assert not folder.exists()


def test_the_setting_names_the_directory(agspeed, cache, monkeypatch):
    monkeypatch.setenv("AGSPEED_CACHE_DIR", str(cache))
    assert str(cache) in agspeed("cache", "ls").out


def test_export_and_import_copy_everything_privately(agspeed, cache, tmp_path):
    packed, copy = tmp_path / "a.zip", tmp_path / "deep" / "copy"
    assert "2 decisions and 2 kernels" in agspeed("cache", "--cache-dir", cache, "export", packed).out
    result = agspeed("cache", "--cache-dir", copy, "import", packed)
    assert result.code == 0 and "2 of the decisions were new" in result.out
    assert list(decision_table.read_decisions(copy)) == list(decision_table.read_decisions(cache))
    names = [path.name for path in cache_files.kernel_paths(cache)]
    assert [path.name for path in cache_files.kernel_paths(copy)] == names
    for path in (copy, *copy.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert agspeed("cache", "--cache-dir", copy, "verify").code == 0
    assert "0 of the decisions were new" in agspeed("cache", "--cache-dir", copy, "import", packed).out


def test_decisions_only_leaves_machine_code_out(agspeed, cache, tmp_path):
    agspeed("cache", "--cache-dir", cache, "export", tmp_path / "a.zip")
    copy = tmp_path / "copy"
    agspeed("cache", "--cache-dir", copy, "import", "--decisions-only", tmp_path / "a.zip")
    assert cache_files.kernel_paths(copy) == []
    assert len(list(decision_table.read_decisions(copy))) == 2


def test_import_keeps_the_newer_decision(agspeed, tmp_path):
    cache = tmp_path / "cache"
    decision_table.write_decisions(cache, [decision(created=100)])
    for created, kept in ((50, 100), (200, 200)):
        row = ROW | {"created": created}
        packed = archive(tmp_path / f"{created}.zip", {"decisions.jsonl": lines(row)})
        assert agspeed("cache", "--cache-dir", cache, "import", packed).code == 0
        assert [found.created for found, _ in decision_table.read_decisions(cache)] == [kept]


@pytest.mark.parametrize(
    ("files", "manifest_text", "expected"),
    [
        ({"../evil.agk": KERNEL}, None, "unexpected entry '../evil.agk'"),
        ({"kernels/../../evil.agk": KERNEL}, None, "unexpected entry"),
        ({"/etc/evil": b""}, None, "unexpected entry"),
        ({"kernels/x.so": b""}, None, "unexpected entry"),
        ({"tuning.sqlite": b""}, None, "unexpected entry"),
        ({f"kernels/{NAME}": KERNEL}, manifest({f"kernels/{NAME}": b"other"}), "does not match its checksum"),
        ({f"kernels/{NAME}": KERNEL}, manifest({}), "manifest and the archive's entries differ"),
        ({}, manifest({f"kernels/{NAME}": KERNEL}), "manifest and the archive's entries differ"),
        ({f"kernels/{NAME}": KERNEL[:-1]}, None, "has a wrong length"),
        ({f"kernels/{NAME}": KERNEL[:-1] + b"?"}, None, "has a wrong checksum"),
        ({f"kernels/{NAME}": b"\0" * 80}, None, "is not a kernel"),
        ({f"kernels/{NAME}": b"AG"}, None, "is truncated"),
        ({f"kernels/{'0' * 32}.agk": KERNEL}, None, "a name that does not belong to its key"),
        ({"decisions.jsonl": b"\x80\x04]."}, None, "is not JSON lines"),
        ({"decisions.jsonl": b"{}\n"}, None, "has no header"),
        ({"decisions.jsonl": lines([])}, None, "line 2 of decisions.jsonl is not a decision"),
        ({"decisions.jsonl": lines(ROW | {"key": {}})}, None, "lacks one of the key's members"),
        ({"decisions.jsonl": lines(ROW, ROW | {"record": {}})}, None, "line 3 of decisions.jsonl has no decision"),
        ({"decisions.jsonl": lines(ROW | {"uses": -1})}, None, "not whole numbers"),
        ({"decisions.jsonl": lines(ROW | {"uses": "1); DROP TABLE decisions"})}, None, "not whole numbers"),
        ({"decisions.jsonl": lines(ROW | {"record": {"arm": "x" * (1 << 20)}})}, None, "larger than the format allows"),
        ({}, b"[]", "is not a cache archive"),
        ({}, b"[" * 100_000, "is not a cache archive"),
        ({}, manifest({}, version=2), "of another version"),
    ],
)
def test_archive_with_anything_wrong_is_refused_whole(agspeed, tmp_path, files, manifest_text, expected):
    good = {"decisions.jsonl": lines(ROW)} if "decisions.jsonl" not in files and manifest_text is None else {}
    packed = archive(tmp_path / "bad.zip", good | files, manifest_text)
    cache = tmp_path / "cache"
    result = agspeed("cache", "--cache-dir", cache, "import", packed)
    assert (result.code, result.out) == (2, "")
    assert expected in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip"]


def test_archive_that_would_unpack_to_too_much_is_refused(agspeed, tmp_path):
    packed = tmp_path / "bomb.zip"
    archive(packed, {f"kernels/{NAME}": KERNEL})
    data = bytearray(packed.read_bytes())
    # The central directory's record of the kernel claims an uncompressed size of almost 4 GiB.
    record = data.rindex(b"PK\x01\x02")
    data[record + 24 : record + 28] = struct.pack("<I", 0xFFFFFFF0)
    packed.write_bytes(data)
    result = agspeed("cache", "--cache-dir", tmp_path / "cache", "import", packed)
    assert result.code == 2 and "larger than" in result.err


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archive_with_two_entries_of_one_name_is_refused(agspeed, tmp_path):
    packed = tmp_path / "twice.zip"
    with zipfile.ZipFile(packed, "w") as target:
        target.writestr("manifest.json", manifest({"decisions.jsonl": lines(ROW)}))
        target.writestr("decisions.jsonl", lines(ROW))
        target.writestr("decisions.jsonl", lines())
    result = agspeed("cache", "--cache-dir", tmp_path / "cache", "import", packed)
    assert result.code == 2 and "same name" in result.err


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + b"\0" * 40])
def test_file_that_is_no_archive_is_refused(agspeed, tmp_path, content):
    packed = tmp_path / "a.zip"
    packed.write_bytes(content)
    result = agspeed("cache", "--cache-dir", tmp_path / "cache", "import", packed)
    assert result.code == 2 and "not a readable cache archive" in result.err
    assert agspeed("cache", "import", tmp_path / "missing.zip").code == 2


def test_import_refuses_a_cache_that_others_can_write(agspeed, cache, tmp_path):
    agspeed("cache", "--cache-dir", cache, "export", tmp_path / "a.zip")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    result = agspeed("cache", "--cache-dir", shared, "import", tmp_path / "a.zip")
    assert result.code == 2 and "can be written by others" in result.err
    assert list(shared.iterdir()) == []


def test_verify_finds_what_was_changed(agspeed, cache):
    first, second = cache_files.kernel_paths(cache)
    first.write_bytes(first.read_bytes()[:-1] + b"!")
    second.chmod(0o666)
    with closing(sqlite3.connect(cache / "tuning.sqlite")) as database, database:
        database.execute("UPDATE decisions SET record = replace(record, 'native', 'rogue') WHERE key LIKE '%9c1f%'")
    result = agspeed("cache", "--cache-dir", cache, "verify", "--json")
    problems = json.loads(result.out)["problems"]
    assert result.code == 1
    assert len(problems) == 3
    for part in ("wrong checksum", "can be written by others"):
        assert any(part in problem["what"] for problem in problems)
    assert "3 problems" in agspeed("cache", "--cache-dir", cache, "verify").out


def test_damaged_entries_are_neither_listed_nor_exported(agspeed, cache, tmp_path):
    first, _ = cache_files.kernel_paths(cache)
    first.write_bytes(b"damaged")
    with closing(sqlite3.connect(cache / "tuning.sqlite")) as database, database:
        database.execute("UPDATE decisions SET crc32 = 1 WHERE key LIKE '%9c1f%'")
    assert "1 decision, 2 kernels" in agspeed("cache", "--cache-dir", cache, "ls").out
    assert "1 decision and 1 kernel " in agspeed("cache", "--cache-dir", cache, "export", tmp_path / "a.zip").out


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + b"\xff" * 200, b"text, not a database at all" * 20])
def test_foreign_or_corrupt_database_is_left_alone(agspeed, cache, tmp_path, content):
    agspeed("cache", "--cache-dir", cache, "export", tmp_path / "a.zip")
    (cache / "tuning.sqlite").write_bytes(content)
    assert agspeed("cache", "--cache-dir", cache, "ls").code == 2
    assert agspeed("cache", "--cache-dir", cache, "verify").code == 1
    assert agspeed("cache", "--cache-dir", cache, "import", tmp_path / "a.zip").code == 2
    assert (cache / "tuning.sqlite").read_bytes() == content


def test_database_of_another_program_is_left_alone(agspeed, cache):
    with closing(sqlite3.connect(cache / "tuning.sqlite")) as database:
        database.execute("PRAGMA application_id=7")
    result = agspeed("cache", "--cache-dir", cache, "ls")
    assert result.code == 2 and "agspeed leaves it alone" in result.err


def test_prune_removes_what_is_old(agspeed, cache):
    decision_table.write_decisions(cache, [decision("recent", used=4_000_000_000)])
    first, second = cache_files.kernel_paths(cache)
    os.utime(first, (1, 1))
    assert "Would remove 2 decisions and 1 kernel" in agspeed("cache", "--cache-dir", cache, "prune", "--dry-run").out
    assert first.exists()
    assert "Removed 2 decisions and 1 kernel" in agspeed("cache", "--cache-dir", cache, "prune").out
    assert cache_files.kernel_paths(cache) == [second]
    assert ["recent" in found.key for found, _ in decision_table.read_decisions(cache)] == [True]


def test_prune_of_one_graph_leaves_everything_else(agspeed, cache):
    decision_table.write_decisions(cache, [decision("abcd")])
    kernels = cache_files.kernel_paths(cache)
    result = agspeed("cache", "prune", "--graph", "abc", "--cache-dir", cache)
    assert "Removed 1 decision and 0 kernels" in result.out
    assert not any("abcd" in found.key for found, _ in decision_table.read_decisions(cache))
    assert len(list(decision_table.read_decisions(cache))) > 0 and cache_files.kernel_paths(cache) == kernels
    unknown = agspeed("cache", "--cache-dir", cache, "prune", "--graph", "abc")
    assert unknown.code == 2 and "no stored decision is about it" in unknown.err


def test_prune_to_a_size_removes_the_oldest_first(agspeed, cache):
    first, second = cache_files.kernel_paths(cache)
    os.utime(second, (first.stat().st_atime - 60, first.stat().st_mtime - 60))
    size = first.stat().st_size
    agspeed("cache", "--cache-dir", cache, "prune", "--days", "100000", "--max-size", f"{size}")
    assert cache_files.kernel_paths(cache) == [first]
    agspeed("cache", "--cache-dir", cache, "prune", "--all")
    assert cache_files.kernel_paths(cache) == []
    assert list(decision_table.read_decisions(cache)) == []


@pytest.mark.parametrize("arguments", [("--days", "-1"), ("--days", "nan"), ("--days", "soon"), ("--max-size", "much")])
def test_prune_refuses_nonsense(agspeed, cache, arguments):
    result = agspeed("cache", "--cache-dir", cache, "prune", *arguments)
    assert result.code == 2
    assert len(cache_files.kernel_paths(cache)) == 2


@pytest.mark.parametrize("action", [("ls",), ("verify",), ("prune", "--all"), ("export", "a.zip")])
def test_a_file_is_no_cache_directory(agspeed, tmp_path, monkeypatch, action):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.touch()
    result = agspeed("cache", "--cache-dir", file, *action)
    assert result.code == 2 and "not a directory" in result.err and result.err.count("\n") == 1
    monkeypatch.setenv("AGSPEED_CACHE_DIR", str(file))
    assert agspeed("cache", *action).code == 2
    assert agspeed("cache", "--cache-dir", "~nobody-of-that-name/c", *action).code == 2


def test_links_in_the_cache_are_not_followed(agspeed, cache, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (cache / cache_files.KERNELS / f"{'a' * 32}.agk").symlink_to(secret)
    agspeed("cache", "--cache-dir", cache, "export", tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        assert not any("aaaa" in name for name in packed.namelist())
    agspeed("cache", "--cache-dir", cache, "prune", "--all")
    assert secret.read_text() == "secret"
