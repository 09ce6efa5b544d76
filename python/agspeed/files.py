# SPDX-License-Identifier: Apache-2.0
"""Writes files atomically: each is written under a temporary name in the same folder and then renamed.

In a folder where other users may write, a predictable name may already be taken, for example by a link to another file.
So the temporary name is random and new, and its mode is 0600. The rename then follows no link. Stateless; any thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

__all__ = ["append", "create", "make_folder", "replacing", "write"]


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Creates or replaces the file `path` with this content (text as UTF-8).

    Raises: OSError if that is impossible, or if `path` exists and is not a regular file. No temporary file remains.
    """
    with replacing(path) as stream:
        stream.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Like `write`, for content in parts: the block writes to the yielded stream. The file replaces `path` at the end
    of the block, unless the block raises."""
    descriptor, temporary = _new(path)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def create(path: str | os.PathLike[str]) -> TextIO:
    """Creates or replaces `path` with an empty file, for text that others may read while it is written.

    The caller closes it. Raises: as `write`.
    """
    descriptor, temporary = _new(path)
    try:
        os.replace(temporary, path)
    except OSError:
        os.close(descriptor)
        os.unlink(temporary)
        raise
    return os.fdopen(descriptor, "w", encoding="utf-8")


def append(path: str | os.PathLike[str]) -> TextIO:
    """Opens a file of this user for text behind its content. If there is none, it is created as `create` does.

    The caller closes it. Raises: as `write`; PermissionError for another user's file, or for one with several names.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return create(path)
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1:
        return os.fdopen(descriptor, "w", encoding="utf-8")
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "it is not a regular file of this user's alone", os.fspath(path))


def make_folder(folder: Path) -> None:
    """Makes a folder that only this user may enter, and any missing parents the same way. Raises: OSError."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _new(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Makes a temporary file in the folder of `path`. Returns: its descriptor and its name."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "it is there and is not a regular file", os.fspath(path))
    place = Path(path).absolute()
    return tempfile.mkstemp(prefix=f".{place.name[:64]}.", dir=place.parent)
