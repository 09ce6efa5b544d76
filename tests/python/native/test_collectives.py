# SPDX-License-Identifier: Apache-2.0
"""Collectives inside a graph: Inductor's code starts and awaits them at the same places as the graph. So all ranks
agree, even if different candidates run a region on them."""

from __future__ import annotations

import re

import pytest

from agspeed.cli.probe import run_child

SCRIPT = """
import copy
import torch
from torch import distributed
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore
from agspeed.backends.base import CompileOptions
from agspeed.backends.inductor import Inductor
from agspeed.backends.joint import fake_inputs

distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)

def function(x, weight):
    first = collectives.all_reduce(x * 2, "sum", distributed.group.WORLD) + 1
    hidden = (x @ weight).relu() @ weight
    second = collectives.all_reduce(hidden * 3, "sum", distributed.group.WORLD)
    return first.sum() + second.sum() + (hidden @ weight).sum()

def backend(graph, inputs):
    print(Inductor().compile(copy.deepcopy(graph), fake_inputs(graph), CompileOptions(num_threads=1)).generated)
    return graph.forward

torch.compile(function, backend=backend)(*(torch.randn(64, 64, requires_grad=True) for _ in range(2)))
"""


@pytest.mark.slow
def test_inductor_awaits_a_collective_where_the_graph_does() -> None:
    """Since torch 2.14 Inductor would reorder the backward of this function and compute something before the wait."""
    code, output = run_child(SCRIPT, 300)
    assert code == 0, output[-2000:]
    calls = re.findall(r"^\s+(?:torch\.ops\._c10d_functional\.(\w+)|(extern_kernels|cpp_fused))", output, re.M)
    words = [collective or "compute" for collective, _ in calls]
    places = [at for at, word in enumerate(words) if word.startswith("all_reduce")]
    assert len(places) == 3, words  # two in the forward, one in the backward
    assert all(words[at + 1] == "wait_tensor" for at in places), words
