# SPDX-License-Identifier: Apache-2.0
"""Which torch this is. Stateless; any thread."""

from __future__ import annotations

import functools
import re


def version() -> str:
    """As torch writes it, "2.15.0+cpu" say."""
    import torch

    return str(torch.__version__)


@functools.cache
def minor() -> tuple[int, int]:
    """(2, 15) of "2.15.0+cpu" and of "2.15.0a0+git1234"; (0, 0) of what is no version."""
    found = re.match(r"(\d+)\.(\d+)", version())
    return (int(found[1]), int(found[2])) if found else (0, 0)
