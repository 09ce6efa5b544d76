# SPDX-License-Identifier: Apache-2.0
"""MLP-mixer on photo patches: LayerNorm, GELU and transposes around small matrix products."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


def feed(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = feed(tokens, 2 * tokens), feed(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(MixerBlock(64, width) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def make() -> Training:
    model = Mixer()
    batches = data.shuffled_batches(*data.photo_patches(32, 128, seed=19), batch=32, count=8, seed=19)
    return supervised(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), cross_entropy, batches)


WORKLOAD = Workload("mlp_mixer", "LayerNorm, GELU and transposes around small products, photo patches", 19, make)
