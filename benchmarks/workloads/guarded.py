# SPDX-License-Identifier: Apache-2.0
"""A regularised residual MLP that reads its activations half-way with `.item()`, as guards against overflow do."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised
from benchmarks.workloads.layers import DropoutBlock

_LARGEST = 1e3


class GuardedNet(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, width), *(DropoutBlock(width) for _ in range(3)))
        self.second = nn.Sequential(*(DropoutBlock(width) for _ in range(3)), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.detach().abs().max().item() > _LARGEST:
            x = x.clamp(-_LARGEST, _LARGEST)
        return self.second(x)


def make() -> Training:
    model = GuardedNet()
    batches = data.shuffled_batches(*data.digits(), batch=512, count=7, seed=26)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=2e-3), cross_entropy, batches)


WORKLOAD = Workload("guarded", ".item() in a condition between two stacks of dropout layers, digits", 26, make)
