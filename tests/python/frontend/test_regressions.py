# SPDX-License-Identifier: Apache-2.0
"""Models that torch.compile's own backends failed on at some time train here as in eager, compiled or not.

They are small versions of torchvision's swin_v2 on CPU (torch 2.11), segformer with dynamic sizes (2.13), and
log_softmax of a tensor without dimensions (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.python.frontend.differential import compare, state
from tests.python.support.small_models import Linear, data

Wrap = Callable[[Any], Any]


def _loop(wrap: Wrap, model: nn.Module, losses: list[Callable[[nn.Module], torch.Tensor]]) -> list[Any]:
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    for loss_of in losses:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return [*seen, *state(model)]


def swin_v2(wrap: Wrap) -> list[Any]:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    model = SwinTransformer(
        patch_size=[4, 4],
        embed_dim=8,
        depths=[1, 1],
        num_heads=[1, 2],
        window_size=[4, 4],
        stochastic_depth_prob=0.0,
        num_classes=5,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    )
    targets = torch.tensor([1, 3])
    losses = [
        lambda m, i=i: nn.functional.cross_entropy(m(data(2, 3, 32, 32, seed=i)), targets)  # type: ignore[misc]
        for i in range(4)
    ]
    return _loop(wrap, model, losses)


def segformer(wrap: Wrap) -> list[Any]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_encoder_blocks=1,
        depths=[1],
        sr_ratios=[2],
        hidden_sizes=[8],
        patch_sizes=[3],
        strides=[4],
        num_attention_heads=[2],
        mlp_ratios=[2],
        decoder_hidden_size=16,
        num_labels=3,
        hidden_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
    )
    model = SegformerForSemanticSegmentation(config)

    def loss_of(size: int, seed: int) -> Callable[[nn.Module], torch.Tensor]:
        labels = torch.arange(2 * size * size).remainder(3).reshape(2, size, size)
        return lambda m: m(pixel_values=data(2, 3, size, size, seed=seed), labels=labels).loss

    return _loop(wrap, model, [loss_of(size, seed) for seed, size in enumerate((16, 16, 16, 24))])


def log_softmax_without_dimensions(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        number = layer(x).sum()
        return number.log_softmax(0) + number.softmax(-1) + number * 0.1

    return _loop(wrap, Linear(body), [lambda m, i=i: m(data(4, 8, seed=i)) for i in range(5)])  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "candidate", "numerics"),
    [
        (swin_v2, "aot", "standard"),
        (segformer, "aot", "off"),  # not dynamic: checking its dynamic graphs against float64 takes too long for a test
        (log_softmax_without_dimensions, "aot", "standard"),
        (log_softmax_without_dimensions, "native", "standard"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_trains_as_eager(script: Callable[[Wrap], list[Any]], candidate: str, numerics: str) -> None:
    outcome = compare(script, candidate=candidate, tolerance=2e-4, numerics=numerics)
    assert outcome.ran(candidate), outcome.reasons()
