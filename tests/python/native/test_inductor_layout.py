# SPDX-License-Identifier: Apache-2.0
"""When Inductor may run convolutions channels-last: never where random numbers would go to other elements."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import fx, nn
from torch._inductor import compile_fx, config

from agspeed.backends.base import CompileOptions
from agspeed.backends.inductor import Inductor
from agspeed.backends.joint import fake_inputs

CASES = [
    ("nothing is drawn", lambda x: x.flatten(1), True),
    ("drawn for vectors", lambda x: F.dropout(x.flatten(1), 0.5), True),
    ("drawn for feature maps", lambda x: F.dropout(x, 0.5), False),
    ("drawn for channels", lambda x: F.dropout2d(x, 0.5), False),
]


@pytest.mark.parametrize(("name", "head", "expected"), CASES, ids=[name for name, _, _ in CASES])
def test_layout_follows_what_random_numbers_are_drawn_for(
    monkeypatch: pytest.MonkeyPatch, name: str, head: Callable[[torch.Tensor], torch.Tensor], expected: bool
) -> None:
    allowed: list[bool] = []

    def note(graph: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        allowed.append(bool(config.layout_optimization))
        return make_boxed_func(graph)

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        Inductor().compile(copy.deepcopy(gm), fake_inputs(gm), CompileOptions(num_threads=1))
        return gm.forward

    monkeypatch.setattr(compile_fx, "compile_fx_inner", note)
    torch._dynamo.reset()
    convolution = nn.Conv2d(3, 4, 3)
    model = torch.compile(lambda x: head(convolution(x)), backend=backend)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert allowed == [expected, expected]  # forward and backward
