# SPDX-License-Identifier: Apache-2.0
"""The secret of a job: random, in anonymous memory, inherited as a file descriptor.

No command line, file system, variable or log contains it. A rank reads it as the file /proc/self/fd/N.
"""

from __future__ import annotations

import os
import secrets

__all__ = ["create"]

_KEY_BYTES = 32


def create() -> int:
    """Returns a descriptor of a new key. Only processes that inherit it can read the key. The caller closes it."""
    descriptor = os.memfd_create("agspeed-job-key", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, secrets.token_hex(_KEY_BYTES).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
