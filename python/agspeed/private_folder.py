# SPDX-License-Identifier: Apache-2.0
"""Private folders below the temporary directory. Only this user can enter them, and they are removed after use.

Each process that uses a folder holds a lock on it. The system releases the lock when the process ends, even if it is
killed. The last process to close a folder removes it; `sweep` removes folders whose processes were all killed. A folder
is opened by its name once. After that, all access goes through its descriptor, so it cannot be swapped for another one.

Any thread. A fork of the process that opened a folder does not close it.
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
}
"""{kind of folder: the pattern of its file names}. Only files that match are removed. None: compilers choose the names,
and everything is removed."""
_ID = re.compile(r"[0-9a-f]{8,64}")
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 8
_PAUSES_S = (0.0, 0.01, 0.05, 0.2)
"""Pauses before each try to remove a folder: a killed compiler may still write for a moment."""


class PrivateFolder:
    """One folder and this process's lock on it."""

    def __init__(self, kind: str, name: str | None = None) -> None:
        """Makes or opens a folder.

        Args:
            kind: "child" or "host".
            name: hexadecimal digits by which other processes of this user can open the same folder; None: random.
        Raises:
            OSError if there is no room for it, PermissionError if another user has taken the name.
        """
        name = secrets.token_hex(8) if name is None else name
        if kind not in _FILES or not _ID.fullmatch(name):
            raise ValueError(f"{kind!r} {name!r} names no private folder")
        self.path = Path(tempfile.gettempdir()) / f"agspeed-{kind}-{os.getuid()}-{name}"
        self.descriptor = _enter(self.path)
        """The folder's descriptor, which holds the lock: a process that inherits it also counts as a user of the
        folder. -1 after `close`."""
        self._kind, self._owner = kind, os.getpid()

    def close(self) -> None:
        """Ends this process's use of the folder and removes the folder if no process uses it. Never raises. Repeated
        calls, and calls in a fork, do nothing."""
        if self.descriptor < 0 or os.getpid() != self._owner:
            return
        descriptor, self.descriptor = self.descriptor, -1
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # so of two processes that close at once, the later one removes
            _remove_unless_used(descriptor, self.path, self._kind)
        finally:
            os.close(descriptor)

    def has(self, name: str) -> bool:
        return os.access(name, os.F_OK, dir_fd=self.descriptor, follow_symlinks=False)

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Returns the file's content; None if it does not exist or is larger than `most_bytes`. Raises: OSError."""
        try:
            with open(os.open(name, os.O_RDONLY | _NO_LINK, dir_fd=self.descriptor), "rb") as file:
                content = file.read(most_bytes + 1)
        except FileNotFoundError:
            return None
        return content if len(content) <= most_bytes else None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file atomically: until it is complete, its name ends in this process's number. Raises: OSError."""
        stem, _, _ = name.partition(".")
        unfinished = f"{stem}.{os.getpid()}"
        with open(self.descriptor_of(unfinished, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(content)
        os.replace(unfinished, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def descriptor_of(self, name: str, flags: int) -> int:
        """Opens a file, and creates it if needed. Returns: its descriptor, which the caller closes. Raises: OSError."""
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
    """Makes or opens the folder. Returns: its descriptor, with a shared lock."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            descriptor = _opened(path)
        except FileNotFoundError:  # its last user has just removed it: try again
            continue
        with contextlib.suppress(OSError):  # on file systems without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)
    raise FileNotFoundError(f"{path} is removed by another process again and again")


def _opened(path: Path) -> int:
    """Returns the descriptor of a folder. Raises: OSError unless it is a folder that only this user can enter."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
    except NotADirectoryError:
        raise PermissionError(f"{path} is no folder of this user's: remove it") from None
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return descriptor
    os.close(descriptor)
    raise PermissionError(f"{path} belongs to another user, or other users may enter it: remove it")


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
    except OSError:  # a file system without locks: the first process to close the folder removes it
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
