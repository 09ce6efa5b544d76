# SPDX-License-Identifier: Apache-2.0
"""A plain multi-layer perceptron on digits: matrix products and the optimizer share the step."""

import torch
from torch import nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


def make() -> Training:
    model = nn.Sequential(
        nn.Linear(64, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )
    batches = data.shuffled_batches(*data.digits(), batch=256, count=16, seed=2)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=1e-3), cross_entropy, batches)


WORKLOAD = Workload("mlp", "matrix products: 512-wide MLP, batch 256, Adam, digits", 2, make)
