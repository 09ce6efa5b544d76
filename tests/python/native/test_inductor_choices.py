# SPDX-License-Identifier: Apache-2.0
"""max-autotune is compiled only for graphs in which it has a choice between implementations."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from agspeed import config
from agspeed.backends import CompileOptions
from agspeed.backends.inductor import has_choices
from agspeed.tuning.child.queue import CompileQueue

_INPUTS = (torch.ones(4, 4), torch.ones(1, 4, 6, 6), torch.ones(2, 4, 3, 3), torch.ones(2, 4, 1, 1))
_CASES: list[tuple[str, Callable[..., torch.Tensor], bool]] = [
    ("element-wise", lambda x, maps, wide, narrow: x.exp() + x, False),
    ("a product", lambda x, maps, wide, narrow: x @ x + 1, False),
    ("a product with a bias", lambda x, maps, wide, narrow: F.linear(x, x, x[0]), True),
    ("a sum of products", lambda x, maps, wide, narrow: x @ x + x.t() @ x, True),
    ("products in batches", lambda x, maps, wide, narrow: torch.bmm(maps[0], maps[0]), True),
    ("a convolution", lambda x, maps, wide, narrow: F.conv2d(maps, wide), False),
    ("a 1x1 convolution", lambda x, maps, wide, narrow: F.conv2d(maps, narrow), True),
]


@pytest.mark.parametrize(("name", "function", "expected"), _CASES, ids=[name for name, _, _ in _CASES])
def test_graphs_with_choices(name: str, function: Callable[..., torch.Tensor], expected: bool) -> None:
    graph = make_fx(function, tracing_mode="fake")(*_INPUTS)
    assert has_choices(graph) == expected, f"{name}: {graph.code}"


def _answered(queue: CompileQueue, region: Any, name: str, **answer: Any) -> None:
    queue._take_answer(region, SimpleNamespace(candidate=name, answer={"state": "ready", **answer}))


def test_a_twin_is_skipped_unless_the_child_is_through_with_it() -> None:
    queue = CompileQueue(lambda: CompileOptions(num_threads=1), config.resolve({}))
    region = SimpleNamespace(index=0, outcomes={}, code_digests={}, proofs={})
    _answered(queue, region, "inductor", twins=["inductor-max-autotune"])
    assert region.outcomes["inductor-max-autotune"].reason == "generates the same code as inductor"
    assert "inductor" not in region.outcomes
    _answered(queue, region, "other", twins=["inductor"])
    assert "inductor" not in region.outcomes
