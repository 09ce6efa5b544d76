# SPDX-License-Identifier: Apache-2.0
"""Channels-last feature maps in Inductor: where it may choose them, and gradients through pooling of them."""

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
from agspeed.backends.inductor import Inductor, pool_by_mean
from agspeed.backends.joint import fake_inputs
from agspeed.tuning.gate import check as gate

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


class Pooled(nn.Module):
    """A head as ConvNeXt has it: feature maps pooled to one number per channel, then normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 16, 2, 2)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = F.adaptive_avg_pool2d(self.convolution(x), 1)
        return self.norm(pooled.permute(0, 2, 3, 1)).flatten(1)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_gradients_pass_through_pooled_channels_last_maps() -> None:
    """Inductor 2.11 by itself drops them: as_strided's gradient is read before it is written."""
    verdicts: list[gate.Verdict] = []

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        runner = Inductor().compile(copy.deepcopy(gm), fake_inputs(gm), CompileOptions(num_threads=1))

        def checked(*args: Any) -> Any:
            verdicts.append(gate.check(runner, gm, [arg.detach().requires_grad_(arg.requires_grad) for arg in args]))
            return gm(*args)

        return checked

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Pooled().to(memory_format=torch.channels_last)
    torch.compile(model, backend=backend)(torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last))
    assert verdicts[0].accepted, verdicts[0].reason


def test_only_pooling_to_one_element_becomes_a_mean() -> None:
    def pools(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, pair = F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (1, 1))
        return one, pair, F.adaptive_avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, (1, None))

    gm = fx.symbolic_trace(pools)
    pool_by_mean(gm)
    targets = [node.target for node in gm.graph.nodes if node.op == "call_function"]
    assert targets == [torch.mean, torch.mean, F.adaptive_avg_pool2d, F.adaptive_avg_pool2d]
    x = torch.randn(2, 3, 4, 6)
    for mine, theirs in zip(gm(x), pools(x), strict=True):
        torch.testing.assert_close(mine, theirs)
