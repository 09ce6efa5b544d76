# SPDX-License-Identifier: Apache-2.0
"""A candidate with a fault, which shows in the demonstration what the numerics gate is for.

It runs the captured graph operator by operator, as eager does, and rounds the first result to bfloat16 and back. No
loss curve shows this error of 0.2 %. agspeed loads it as any plug-in, through the entry point group.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from agspeed.backends import registry
from agspeed.backends.base import Candidate, CompileOptions

NAME = "planted-fault"


class PlantedFault(Candidate):
    """See the module's docstring."""

    name = NAME
    in_process = True
    default = False

    def compile(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
    ) -> Callable[..., Sequence[Any]]:
        def run(*args: Any) -> Sequence[Any]:
            first, *rest = gm.forward(*args)
            return [first.to(torch.bfloat16).to(first.dtype), *rest]

        return run


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Lets agspeed find the candidate inside the block, if ``backends=`` names it."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "planted_fault-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-fault\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\n{NAME} = {__name__}:PlantedFault\n")
        sys.path.insert(0, folder)
        registry.candidates.cache_clear()
        try:
            yield
        finally:
            sys.path.remove(folder)
            registry.candidates.cache_clear()
