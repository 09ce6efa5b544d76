# SPDX-License-Identifier: Apache-2.0
"""Architectures of torchvision, on patches of two photographs."""

from collections.abc import Callable

import torch
from torch import nn
from torchvision import models

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, cross_entropy, supervised


def _training(model: nn.Module, size: int = 64, batch: int = 8) -> Training:
    batches = data.shuffled_batches(*data.photo_patches(size, 8 * batch, seed=4), batch=batch, count=8, seed=4)
    return supervised(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), cross_entropy, batches)


def resnet() -> Training:
    """ResNet-10: one basic block in each of four stages."""
    return _training(models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=8))


def shufflenet_v2() -> Training:
    """ShuffleNet V2: depthwise convolutions, channels that are split and shuffled."""
    return _training(models.shufflenet_v2_x0_5(weights=None, num_classes=8))


def densenet_checkpointed() -> Training:
    """DenseNet that computes its concatenations again in the backward (gradient checkpointing)."""
    model = models.DenseNet(
        growth_rate=12, block_config=(3, 3, 3), num_init_features=24, num_classes=8, memory_efficient=True
    )
    return _training(model)


def maxvit() -> Training:
    """MaxViT: inverted-bottleneck convolutions, attention in blocks and in grids."""
    model = models.MaxVit(
        input_size=(64, 64),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=16,
        stochastic_depth_prob=0.0,
        num_classes=8,
    )
    return _training(model)


RECIPES: dict[str, Callable[[], Training]] = {
    make.__name__: make for make in (resnet, shufflenet_v2, densenet_checkpointed, maxvit)
}
