# SPDX-License-Identifier: Apache-2.0
"""Channels-last feature maps in Inductor: when it may choose them, and gradients through pooling of them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import fx, nn
from torch._inductor import compile_fx, config
from torch.utils.checkpoint import checkpoint
from torchvision.ops import stochastic_depth

from agspeed.backends.base import CompileOptions
from agspeed.backends.inductor import Inductor, pool_by_mean
from agspeed.backends.joint import fake_inputs
from agspeed.torch_compat.inductor import has_broken_pool_gradients
from agspeed.tuning.gate import check as gate

_checkpointed = functools.partial(checkpoint, use_reentrant=False)
CASES = [
    ("nothing is drawn", lambda x: x.flatten(1), True),
    ("drawn for vectors", lambda x: F.dropout(x.flatten(1), 0.5), True),
    ("drawn for feature maps", lambda x: x * torch.rand_like(x), False),
    ("drawn for feature maps of a channel", lambda x: x * torch.rand_like(x[:, :1]), True),
    ("dropout of feature maps", lambda x: F.dropout(x, 0.5), True),
    ("drawn again for feature maps", lambda x: _checkpointed(lambda y: F.dropout(y, 0.5).sin(), x), False),
    ("drawn again for vectors", lambda x: _checkpointed(lambda y: F.dropout(y.flatten(1), 0.5).sin(), x), True),
    ("drawn by an activation", lambda x: F.rrelu(x, training=True), False),
    ("drawn by gumbel softmax", lambda x: F.gumbel_softmax(x, dim=1), False),
    ("drawn with a mean", lambda x: x * torch.normal(x.detach(), 1.0), False),
    ("attention draws nothing", lambda x: F.scaled_dot_product_attention(x, x, x), True),
    ("drawn for channels", lambda x: F.dropout2d(x, 0.5), True),
    ("drawn for images", lambda x: stochastic_depth(x, 0.5, "row"), True),
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
    """A head like ConvNeXt's: feature maps pooled to one number per channel, then normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 16, 2, 2)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = F.adaptive_avg_pool2d(self.convolution(x), 1)
        return self.norm(pooled.permute(0, 2, 3, 1)).flatten(1)  # type: ignore[no-any-return]


def pooled_images() -> tuple[Pooled, torch.Tensor]:
    """Returns a model and its input, in channels-last format."""
    torch.manual_seed(0)
    model = Pooled().to(memory_format=torch.channels_last)
    return model, torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)


def checked_alone(model: nn.Module, x: torch.Tensor) -> tuple[gate.Verdict, Any]:
    """Returns the gate's verdict on Inductor's code for a model with one region, and that code."""
    found: list[tuple[gate.Verdict, Any]] = []

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        runner = Inductor().compile(copy.deepcopy(gm), fake_inputs(gm), CompileOptions(num_threads=1))

        def checked(*args: Any) -> Any:
            own = [arg.detach().requires_grad_(arg.requires_grad) for arg in args]
            found.append((gate.check(runner, gm, own), runner))
            return gm(*args)

        return checked

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(x)
    (result,) = found
    return result


@pytest.mark.slow
def test_gradients_pass_through_pooled_channels_last_maps() -> None:
    verdict, _ = checked_alone(*pooled_images())
    assert verdict.accepted, verdict.reason


@pytest.mark.smoke
@pytest.mark.slow
def test_pooling_is_replaced_only_under_a_torch_that_loses_its_gradients() -> None:
    """If this fails, `has_broken_pool_gradients` lists the wrong releases of torch."""
    model, images = pooled_images()
    model(images).square().sum().backward()
    expected = model.convolution.weight.grad.clone()
    model.zero_grad()
    torch._dynamo.reset()
    try:
        torch.compile(model)(images).square().sum().backward()
        is_lost = not torch.allclose(model.convolution.weight.grad, expected, rtol=1e-3, atol=1e-5)
    except UnboundLocalError:  # raised by Inductor's code
        is_lost = True
    assert is_lost == has_broken_pool_gradients()


@pytest.mark.slow
def test_channels_last_code_drops_the_channels_and_images_that_eager_does() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = F.dropout2d(self.first(x).relu(), 0.5)
            return hidden + stochastic_depth(self.second(hidden), 0.5, "row")

    torch.manual_seed(0)
    verdict, runner = checked_alone(Dropping(), torch.randn(6, 3, 8, 8))
    assert verdict.accepted, verdict.reason
    assert "192, 1, 24, 3" in runner.generated, "the image is turned to channels-last"


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
