# SPDX-License-Identifier: Apache-2.0
"""Convolutions with BatchNorm and ReLU on digits."""

import torch
from torch import nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


def stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def make() -> Training:
    model = nn.Sequential(
        stage(1, 32),
        stage(32, 64),
        nn.MaxPool2d(2),
        stage(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    images, labels = data.digits()
    batches = data.shuffled_batches(images.view(-1, 1, 8, 8), labels, batch=128, count=14, seed=3)
    return supervised(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), cross_entropy, batches)


WORKLOAD = Workload("conv_net", "convolution, BatchNorm, ReLU, pooling, batch 128, digits", 3, make)
