# SPDX-License-Identifier: Apache-2.0
"""The secret of a job: random. It reaches a host over the pipe to its agent, and ranks in anonymous memory.

No command line, file system, variable or log contains it. A rank reads it as the file /proc/self/fd/N.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from agspeed.errors import UserError

__all__ = ["NAMES", "in_memory", "new", "own"]

NAMES = ("AGSPEED_JOB_KEY", "AGSPEED_JOB_KEY_FILE")
"""The variables with which users set a key of their own."""
_KEY_BYTES = 32
_MOST_OWN_BYTES = 4096 + 64  # a key, and space around it


def new() -> str:
    return os.urandom(_KEY_BYTES).hex()


def own(environment: Mapping[str, str]) -> str:
    """Returns the key that the user has set, one character per byte. Raises: UserError if its file cannot be read."""
    if text := environment.get(NAMES[0]):
        return os.fsencode(text).decode("latin-1")
    path = environment[NAMES[1]]
    try:
        with open(path, "rb") as stream:
            return stream.read(_MOST_OWN_BYTES).decode("latin-1")
    except OSError as error:
        raise UserError(
            f"{NAMES[1]}={path}: {error.strerror}; name a file with a key, or unset it for a random key."
        ) from None


def in_memory(key: str) -> int:
    """Returns a descriptor of the key. Only processes that inherit it can read the key. The caller closes it."""
    descriptor = os.memfd_create("agspeed-job-key", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, key.encode("latin-1"))
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
