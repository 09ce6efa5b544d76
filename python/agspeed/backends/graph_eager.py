# SPDX-License-Identifier: Apache-2.0
"""`graph-eager`: runs the captured graph operator by operator, with eager's kernels and without Module.__call__."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from agspeed.backends.base import Candidate, CompileOptions, Runner


class GraphEager(Candidate):
    """Runs the graph as Dynamo captured it. Every region does this until a compiled candidate is chosen for it."""

    name = "graph-eager"
    in_process = True
    exact = True

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        return gm.forward
