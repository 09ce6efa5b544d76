# SPDX-License-Identifier: Apache-2.0
"""How a file is written: under a name of its own beside its place, and put there whole.

In a folder where others may write, a name that can be foreseen may be taken already, by a link to somebody's file say.
So a file is made under a random name that did not exist, with mode 0600, and takes its place by a rename, which follows
no link. Stateless; any thread.
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

__all__ = ["create", "make_folder", "replacing", "write"]


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Puts a file of this content (text as UTF-8) in place of what has that name.

    Raises: OSError where that is impossible, also for what is there and is no regular file; nothing is left behind.
    """
    with replacing(path) as stream:
        stream.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """`write` for content in parts: the file takes its place at the end of the block, if nothing is raised."""
    descriptor, temporary = _new(path)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def create(path: str | os.PathLike[str]) -> TextIO:
    """An empty file in place of what has that name, for text that others may read while it is written.

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


def make_folder(folder: Path) -> None:
    """Makes a folder that only this user may enter, and its missing parents likewise. Raises: OSError."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _new(path: str | os.PathLike[str]) -> tuple[int, str]:
    """A file of our own beside `path`: its descriptor and its name."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "it is there and is no regular file", os.fspath(path))
    place = Path(path).absolute()
    return tempfile.mkstemp(prefix=f".{place.name[:64]}.", dir=place.parent)
