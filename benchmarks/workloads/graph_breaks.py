# SPDX-License-Identifier: Apache-2.0
"""A model that breaks the graph twice: it prints and it branches on a value read with `.item()`."""

import io

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


class TalkativeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU())
        self.second = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())
        self.head = nn.Linear(256, 10)
        self.log = io.StringIO()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.log.seek(0)
        print("mean activation", tuple(x.shape), file=self.log)
        x = self.second(x)
        if x.detach().abs().max().item() > 1e3:
            x = x.clamp(-1e3, 1e3)
        return self.head(x)


def make() -> Training:
    model = TalkativeNet()
    batches = data.shuffled_batches(*data.digits(), batch=256, count=7, seed=18)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=1e-3), cross_entropy, batches)


WORKLOAD = Workload("graph_breaks", "print and .item() inside forward, digits", 18, make)
