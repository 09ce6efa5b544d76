# SPDX-License-Identifier: Apache-2.0
"""Names native kernels for Linux's `perf`, in the file /tmp/perf-PID.map, in which it looks for generated code.

Entries stay if their code is freed, as the format has no way to remove them. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agspeed import files
from agspeed.log import warn_once

if TYPE_CHECKING:
    from agspeed._native import Kernel

__all__ = ["add"]


def add(kernels: Iterable[Kernel]) -> None:
    """Appends the kernels that have code in this process. If the file cannot be written, that is a warning."""
    lines = [f"{each['address']:x} {each['bytes']:x} {each['name']}\n" for each in kernels if each["bytes"]]
    path = f"/tmp/perf-{os.getpid()}.map"
    try:
        with files.append(path) as stream:
            stream.write("".join(lines))
    except OSError as error:
        reason = error.strerror or error
        warn_once(
            "perf-map", f"AGSPEED_PERF_MAP: {path} cannot be written ({reason}): perf shows kernels without names"
        )
