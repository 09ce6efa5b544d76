# SPDX-License-Identifier: Apache-2.0
"""Cache archives: decisions and kernels in one ZIP file, for machines that should start tuned.

    manifest.json       {"format": "agspeed-cache", "version": 1, "files": {name: sha256}}
    decisions.jsonl     the export of runtime/tune/store/database_format.md
    kernels/<hash>.agk  kernel files, unchanged

The reader does not trust an archive. It accepts only these names, so no entry can point outside. It checks sizes before
it unpacks anything. Every file must match its checksum in the manifest and pass the check of its own format. One bad
entry makes it refuse the whole archive. Checksums detect damage but not malice: kernels are machine code, so import
only archives from people whose programs you would run.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from agspeed import bounded_json
from agspeed.cli import cache_files as files
from agspeed.errors import UserError
from agspeed.files import replacing
from agspeed.tuning.decision_table import Decision, check_decision, read_decisions

__all__ = ["Contents", "export", "read"]

_FORMAT, _VERSION = "agspeed-cache", 1
_MANIFEST, _DECISIONS = "manifest.json", "decisions.jsonl"
_KERNEL_NAME = re.compile(rf"{files.KERNELS}/([0-9a-f]{{32}}{re.escape(files.KERNEL_SUFFIX)})")
_DECISIONS_HEADER = {"format": "agspeed-tuning", "version": 1}
_MAX_FILES = 100_000
_MAX_FILE_BYTES = 256 << 20
_MAX_TOTAL_BYTES = 4 << 30


class Contents(NamedTuple):
    """A checked archive: rows for the database, and kernel files by name."""

    decisions: list[Decision]
    kernels: dict[str, bytes]


def export(cache_dir: Path, target: Path) -> Contents:
    """Writes all valid content of the cache to an archive. Omits invalid content and unfinished tuning. Returns the
    written content."""
    intact = [decision for decision, problem in read_decisions(cache_dir) if problem is None]
    decisions = [decision for decision in intact if not decision.is_unfinished]
    loaded = (
        (path.name, files.read_kernel(path)) for path in files.kernel_paths(cache_dir) if not files.distrust(path)
    )
    kernels = {name: data for name, data in loaded if files.check_kernel(name, data) is None}
    members = {_DECISIONS: _decision_lines(decisions)}
    members |= {f"{files.KERNELS}/{name}": data for name, data in kernels.items()}
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    manifest = {"format": _FORMAT, "version": _VERSION, "files": checksums}
    _write(target, {_MANIFEST: json.dumps(manifest, indent=1).encode(), **members})
    return Contents(decisions, kernels)


def read(source: Path) -> Contents:
    """Reads and checks a whole archive. Writes nothing. Raises: UserError for the first error."""
    try:
        with zipfile.ZipFile(source) as archive:
            return _read(archive, source)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise UserError(f"{source} is not a readable cache archive: {error}.") from None
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror or error}.") from None


def _read(archive: zipfile.ZipFile, source: Path) -> Contents:
    _check_sizes(archive, source)
    checksums = _manifest(archive, source)
    names = set(archive.namelist()) - {_MANIFEST}
    if names != set(checksums):
        raise UserError(
            f"{source}: the manifest and the archive's entries differ ({_example(names ^ set(checksums))})."
        )
    decisions: list[Decision] = []
    kernels: dict[str, bytes] = {}
    for name, checksum in checksums.items():
        data = archive.read(name)
        if hashlib.sha256(data).hexdigest() != checksum:
            raise UserError(f"{source}: {name!r} does not match its checksum in the manifest.")
        if name == _DECISIONS:
            decisions = _parse_decisions(data, source)
        else:
            kernels |= _checked_kernel(name, data, source)
    return Contents(decisions, kernels)


def _check_sizes(archive: zipfile.ZipFile, source: Path) -> None:
    entries = archive.infolist()
    if len(entries) > _MAX_FILES or sum(entry.file_size for entry in entries) > _MAX_TOTAL_BYTES:
        raise UserError(f"{source} is larger than a cache archive may be ({_MAX_FILES:,} files, 4 GiB).")
    for entry in entries:
        is_known = entry.filename in (_MANIFEST, _DECISIONS) or _KERNEL_NAME.fullmatch(entry.filename)
        if not is_known:
            raise UserError(f"{source}: unexpected entry {entry.filename!r}; nothing was imported.")
        if entry.file_size > _MAX_FILE_BYTES:
            raise UserError(f"{source}: {entry.filename!r} is larger than an entry may be.")
    if len({entry.filename for entry in entries}) != len(entries):
        raise UserError(f"{source}: two entries have the same name; nothing was imported.")


def _manifest(archive: zipfile.ZipFile, source: Path) -> dict[str, str]:
    try:
        manifest = bounded_json.loads(archive.read(_MANIFEST))
    except (KeyError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise UserError(f"{source} is not a cache archive: write one with `agspeed cache export`.")
    listed = manifest.get("files")
    if manifest.get("version") != _VERSION or not isinstance(listed, dict):
        raise UserError(f"{source} is a cache archive of another version; this agspeed reads version {_VERSION}.")
    return {str(name): str(checksum) for name, checksum in listed.items()}


def _checked_kernel(name: str, data: bytes, source: Path) -> dict[str, bytes]:
    match = _KERNEL_NAME.fullmatch(name)
    if match is None:
        raise UserError(f"{source}: unexpected entry {name!r}; nothing was imported.")
    problem = files.check_kernel(match[1], data)
    if problem is not None:
        raise UserError(f"{source}: {name!r} {problem}; nothing was imported.")
    return {match[1]: data}


def _decision_lines(decisions: list[Decision]) -> bytes:
    rows: list[dict[str, Any]] = [_DECISIONS_HEADER]
    for d in decisions:
        key, record = d.parsed()
        rows.append({"key": key, "record": record, "created": d.created, "used": d.used, "uses": d.uses})
    return "".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n" for row in rows).encode()


def _parse_decisions(data: bytes, source: Path) -> list[Decision]:
    try:
        rows = [bounded_json.loads(line) for line in data.decode().split("\n") if line]
    except ValueError as error:
        raise UserError(f"{source}: {_DECISIONS} is not JSON lines: {error}.") from None
    if not rows or rows[0] != _DECISIONS_HEADER:
        raise UserError(f"{source}: {_DECISIONS} has no header of a version that this agspeed reads.")
    return [_parse_decision(row, number, source) for number, row in enumerate(rows[1:], 2)]


def _parse_decision(row: Any, number: int, source: Path) -> Decision:
    try:
        key = json.dumps(row["key"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        record = json.dumps(row["record"], separators=(",", ":"), ensure_ascii=False)
        decision = Decision(key, record, row["created"], row["used"], row["uses"])
        problem = check_decision(decision)
    except (KeyError, TypeError, UnicodeEncodeError):
        problem = "is not a decision"
    if problem is not None:
        raise UserError(f"{source}: line {number} of {_DECISIONS} {problem}; nothing was imported.")
    return decision


def _example(names: set[str]) -> str:
    return f"for example {min(names)!r}"


def _write(target: Path, members: dict[str, bytes]) -> None:
    try:
        with replacing(target) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise UserError(f"The archive cannot be written to {str(target)!r}: {error.strerror}.") from None
