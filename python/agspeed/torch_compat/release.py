# SPDX-License-Identifier: Apache-2.0
"""The version of this torch. Stateless; any thread."""

from __future__ import annotations

import functools
import re


def version() -> str:
    """The version as torch writes it, e.g. "2.15.0+cpu"."""
    import torch

    return str(torch.__version__)


@functools.cache
def minor() -> tuple[int, int]:
    """(2, 15) for "2.15.0+cpu" and "2.15.0a0+git1234"; (0, 0) for a text that is not a version."""
    found = re.match(r"(\d+)\.(\d+)", version())
    return (int(found[1]), int(found[2])) if found else (0, 0)
