# SPDX-License-Identifier: Apache-2.0
"""The secret of a job: random, in anonymous memory, handed on as a file descriptor.

It stands in no command line, no file system, no variable and no log; a rank reads it as the file /proc/self/fd/N.
"""

from __future__ import annotations

import os
import secrets

__all__ = ["create"]

_KEY_BYTES = 32


def create() -> int:
    """A descriptor, open for reading by whoever inherits it and nobody else; the caller closes it."""
    descriptor = os.memfd_create("agspeed-job-key", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, secrets.token_hex(_KEY_BYTES).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
