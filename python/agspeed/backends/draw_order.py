# SPDX-License-Identifier: Apache-2.0
"""Keeps operators that draw random numbers in the graph's order when Inductor schedules them.

Inductor's scheduler orders these operators only by their data dependencies. If it fuses early code with code that needs
a late dropout, the late dropout draws first. Its mask then differs from eager's, although each operator draws as eager
does (``fallback_random``). A pass before fusion makes each such operator depend on the one before it. Inductor also
reorders graphs without a backward before that pass, which a setting prevents. Importing this module loads Inductor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from agspeed.torch_compat.inductor import CustomGraphPass, WeakDep, before_fusion, get_hash_for_files
from agspeed.torch_compat.operators import run_and_save_rng_state


def settings() -> dict[str, Any]:
    """Returns Inductor settings that keep the order."""
    return {**before_fusion(DrawInOrder()), "reorder_for_locality": False}


class DrawInOrder(CustomGraphPass):
    """A pass over the scheduler's nodes that adds the dependencies."""

    def __call__(self, nodes: Sequence[Any]) -> Sequence[Any]:  # type: ignore[override] # scheduler nodes, not FX nodes
        drawing = sorted(filter(_draws, nodes), key=lambda node: _number(node.node.get_name()))
        for earlier, later in itertools.pairwise(drawing):
            later.add_fake_dep(WeakDep(earlier.node.get_name(), later.get_name(), is_fake=True))
        if len(drawing) < 2:
            return nodes
        scheduler = nodes[0].scheduler
        scheduler.nodes = scheduler.topological_sort_schedule(nodes)
        scheduler.compute_ancestors()
        result: Sequence[Any] = scheduler.nodes
        return result

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _draws(node: Any) -> bool:
    operator = getattr(node.node, "op_overload", None)
    return operator is run_and_save_rng_state or torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def _number(buffer: str) -> int:
    """Returns 12 for "buf12" or "true_graph_0_buf12": buffers are numbered in their graph's order."""
    return int(buffer.rpartition("buf")[2])
