# SPDX-License-Identifier: Apache-2.0
"""Private folders below the temporary directory: for this user alone, and gone with the processes that use them.

Whoever uses a folder holds a lock on it, which the system releases when that process ends, in whatever way. Who closes
a folder last removes it; `sweep` removes those whose users were killed. A folder is entered by its name once. From then
on everything goes by the descriptor of the folder that was entered: nothing can be put in its place.

Any thread. A fork of the process that entered a folder does not close it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path

__all__ = ["PrivateFolder", "sweep"]

_FILES: dict[str, re.Pattern[str] | None] = {
    "child": None,
    "host": re.compile(r"[0-9a-f]{24}\.(lock|json|\d{1,10})"),
    "run": re.compile(r"call|result\.\d{1,10}|\.(call|result\.\d{1,10})\.\w{1,20}"),
}
"""By kind of folder how its files are named, no others are removed; None where compilers name them."""
_ID = re.compile(r"[0-9a-f]{8,64}")
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 8
_PAUSES_S = (0.0, 0.01, 0.05, 0.2)
"""Before each try to remove a folder: a compiler that was killed may write for a moment."""


class PrivateFolder:
    """See the module's text."""

    def __init__(self, kind: str, name: str | None = None) -> None:
        """Makes a folder. name: hexadecimal digits under which other processes of this user make or enter it, too.

        Raises: OSError where there is no room for it, PermissionError where another user has taken the name.
        """
        name = secrets.token_hex(8) if name is None else name
        if kind not in _FILES or not _ID.fullmatch(name):
            raise ValueError(f"{kind!r} {name!r} names no private folder")
        self.path = Path(tempfile.gettempdir()) / f"agspeed-{kind}-{os.getuid()}-{name}"
        self.descriptor = _enter(self.path)
        """Of the folder, with its lock: a process that inherits it uses the folder, too. -1 once it is closed."""
        self._kind, self._owner = kind, os.getpid()

    def close(self) -> None:
        """This process uses the folder no longer. Never raises; harmless when repeated, and in a fork."""
        if self.descriptor < 0 or os.getpid() != self._owner:
            return
        descriptor, self.descriptor = self.descriptor, -1
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # of two that close at once, the later one finds no lock
            _remove_unless_used(descriptor, self.path, self._kind)
        finally:
            os.close(descriptor)

    def has(self, name: str) -> bool:
        return os.access(name, os.F_OK, dir_fd=self.descriptor, follow_symlinks=False)

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """What is in a file; None where it is not there, or larger. Raises: OSError."""
        try:
            with open(os.open(name, os.O_RDONLY | _NO_LINK, dir_fd=self.descriptor), "rb") as file:
                content = file.read(most_bytes + 1)
        except FileNotFoundError:
            return None
        return content if len(content) <= most_bytes else None

    def write(self, name: str, content: bytes) -> None:
        """Puts a file there whole, which has the process's number for an ending until then. Raises: OSError."""
        stem, _, _ = name.partition(".")
        unfinished = f"{stem}.{os.getpid()}"
        with open(self.descriptor_of(unfinished, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(content)
        os.replace(unfinished, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def descriptor_of(self, name: str, flags: int) -> int:
        """Of a file, which is made where it is not there. The caller closes it. Raises: OSError."""
        return os.open(name, flags | os.O_CREAT | _NO_LINK, 0o600, dir_fd=self.descriptor)

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sweep() -> None:
    """Removes this user's folders that no process uses. Never raises."""
    parent = Path(tempfile.gettempdir())
    pattern = re.compile(rf"agspeed-({'|'.join(_FILES)})-{os.getuid()}-{_ID.pattern}")
    try:
        found = list(filter(None, map(pattern.fullmatch, os.listdir(parent))))
    except OSError:
        return
    for each in found:
        with contextlib.suppress(OSError):
            descriptor = _opened(parent / each[0])
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_unless_used(descriptor, parent / each[0], each[1])
            finally:
                os.close(descriptor)


def _enter(path: Path) -> int:
    """Makes the folder or finds it; its descriptor, with a lock that others may have, too."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            descriptor = _opened(path)
        except FileNotFoundError:  # its last user has just removed it
            continue
        with contextlib.suppress(OSError):  # where there are no locks, nothing is swept
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)
    raise FileNotFoundError(f"{path} is removed by another process again and again")


def _opened(path: Path) -> int:
    """Raises: OSError for what is no folder of this user's alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
    except NotADirectoryError:
        raise PermissionError(f"{path} is no folder of this user's: remove it") from None
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return descriptor
    os.close(descriptor)
    raise PermissionError(f"{path} belongs to somebody else, or others may enter it: remove it")


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def _remove_unless_used(descriptor: int, path: Path, kind: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError:  # no locks here: whoever goes first
        pass
    for pause in _PAUSES_S:
        time.sleep(pause)
        with contextlib.suppress(OSError):
            _empty(descriptor, _FILES[kind])
            if _is_at(path, descriptor):
                os.rmdir(path)
            return
        if _FILES[kind] is not None:
            return


def _empty(descriptor: int, files: re.Pattern[str] | None) -> None:
    with os.scandir(descriptor) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if files is None and is_folder:
            shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
        elif not is_folder and (files is None or files.fullmatch(name)):
            os.unlink(name, dir_fd=descriptor)
