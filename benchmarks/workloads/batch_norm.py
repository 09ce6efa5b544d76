# SPDX-License-Identifier: Apache-2.0
"""A wide residual BatchNorm stack: normalisation and ReLU over large feature maps outweigh the 1x1 convolutions."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm2(self.mix(torch.relu(self.norm1(x)))))


def make() -> Training:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        *(ResidualBlock(32) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 8),
    )
    batches = data.shuffled_batches(*data.photo_patches(32, 128, seed=23), batch=16, count=8, seed=23)
    return supervised(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), cross_entropy, batches)


WORKLOAD = Workload("batch_norm", "BatchNorm and ReLU over 32x32 feature maps, photo patches", 23, make)
