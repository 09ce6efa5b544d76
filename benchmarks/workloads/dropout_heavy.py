# SPDX-License-Identifier: Apache-2.0
"""A regularised residual MLP: dropout on every activation, so random numbers and masks dominate."""

import torch
from torch import nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised
from benchmarks.workloads.layers import DropoutBlock


def make() -> Training:
    width = 128
    model = nn.Sequential(nn.Linear(64, width), *(DropoutBlock(width) for _ in range(4)), nn.Linear(width, 10))
    batches = data.shuffled_batches(*data.digits(), batch=512, count=7, seed=16)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=2e-3), cross_entropy, batches)


WORKLOAD = Workload("dropout_heavy", "eight dropouts per step on 512x128 activations, digits", 16, make)
