# SPDX-License-Identifier: Apache-2.0
"""AOTAutograd's partitioner: the files that it writes if it fails. All needs exist since torch 2.11. Any thread."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from unittest import mock

from agspeed.torch_compat.part import Part

PART = Part(
    "partitioner",
    __name__,
    needs=("torch._functorch.partitioners._get_unique_path",),
    lost="a graph that cannot be partitioned leaves files in the working directory",
)


def without_dumps() -> contextlib.AbstractContextManager[Any]:
    """Inside the block, a graph that cannot be partitioned leaves no files in the working directory."""
    if PART.misfit(may_import=True) is not None:
        return contextlib.nullcontext()
    from torch._functorch import partitioners

    return mock.patch.object(partitioners, "_get_unique_path", lambda name, ending: os.devnull)
