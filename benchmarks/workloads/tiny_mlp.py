# SPDX-License-Identifier: Apache-2.0
"""Three layers of width 64 at batch 8: a step is nearly all call overhead."""

import torch
from torch import nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


def make() -> Training:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    batches = data.shuffled_batches(*data.digits(), batch=8, count=64, seed=1)
    return supervised(model, torch.optim.SGD(model.parameters(), lr=0.1), cross_entropy, batches)


WORKLOAD = Workload("tiny_mlp", "call overhead: three 64-wide layers, batch 8, digits", 1, make, learn_steps=300)
