# SPDX-License-Identifier: Apache-2.0
"""`graph-eager`: the captured graph run operator by operator. Same kernels as eager without Module.__call__'s work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from agspeed.backends.base import Candidate, CompileOptions, Runner


class GraphEager(Candidate):
    """Runs what Dynamo captured; also what every region does before a compiled candidate is chosen for it."""

    name = "graph-eager"
    in_process = True
    exact = True

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions) -> Runner:
        return gm.forward
