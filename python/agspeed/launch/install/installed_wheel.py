# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel of an agspeed that was installed from one, and finds one in a folder of packages.

A wheel's RECORD names its files with their digests, and pip keeps these lines. Any thread; stateless.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import PurePosixPath

from agspeed.errors import UserError

__all__ = ["NAME", "found_here", "lines_of", "packed"]

NAME = "agspeed"
# Files that the installer adds.
_OF_INSTALLER = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")


def found_here() -> importlib.metadata.Distribution | None:
    """Returns the agspeed in the folder into which pip installs packages; None if there is none."""
    folder = sysconfig.get_path("purelib")
    return next(iter(importlib.metadata.distributions(name=NAME, path=[folder])), None)


def lines_of(record: str) -> set[tuple[str, ...]]:
    """Returns the lines of a RECORD about files of the wheel itself: path, digest and size."""
    lines = (tuple(line) for line in csv.reader(io.StringIO(record)))
    return {line for line in lines if len(line) == 3 and line[1] and _is_of_wheel(line[0])}


def packed(found: importlib.metadata.Distribution) -> tuple[str, bytes]:
    """Returns the name and the content of a wheel with the files of an installed agspeed.

    Raises: UserError if it was not installed from a wheel, or if files are missing.
    """
    lines = lines_of(found.read_text("RECORD") or "")
    if (f"{NAME}/version.py") not in {line[0] for line in lines}:
        raise UserError(
            f"agspeed {found.version} in {found.locate_file('')} was not installed from a wheel, as after pip install "
            "-e; uninstall it first, or name a wheel with --wheel."
        )
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as opened:
        for path, *_ in sorted(lines):
            try:
                opened.write(str(found.locate_file(path)), path)
            except OSError as error:
                raise UserError(
                    f"agspeed {found.version} is not complete: {path}: {error.strerror}; install it again."
                ) from None
        opened.writestr(_record_name(lines), _record(lines))
    return _name(found), archive.getvalue()


def _is_of_wheel(path: str) -> bool:
    parts = PurePosixPath(path).parts
    is_inside = parts[0] == NAME or (parts[0].startswith(f"{NAME}-") and parts[0].endswith(".dist-info"))
    return is_inside and ".." not in parts and parts[-1] not in _OF_INSTALLER and "__pycache__" not in parts


def _record_name(lines: set[tuple[str, ...]]) -> str:
    (folder,) = {line[0].split("/")[0] for line in lines if ".dist-info/" in line[0]}
    return f"{folder}/RECORD"


def _record(lines: set[tuple[str, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*sorted(lines), (_record_name(lines), "", "")])
    return text.getvalue()


def _name(found: importlib.metadata.Distribution) -> str:
    rows = (found.read_text("WHEEL") or "").splitlines()
    tags: Sequence[Sequence[str]] = [row[len("Tag: ") :].strip().split("-") for row in rows if row.startswith("Tag: ")]
    parts = [".".join(sorted({tag[index] for tag in tags})) for index in range(3)]
    return f"{NAME}-{found.version}-{'-'.join(parts)}.whl"
