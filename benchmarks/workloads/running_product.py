# SPDX-License-Identifier: Apache-2.0
"""Products and sums along rows, sorting and indexing: operators that generated code handles worse than the library."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


class SurvivalNet(nn.Module):
    """Stick-breaking weights by a running product, and features ordered by size."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, width), nn.Linear(width, width)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        hazard = torch.sigmoid(self.first(x) - 4)
        features = self.second(x.repeat(1, 2)) * torch.cumprod(1 - hazard, dim=1)
        ordered, _ = torch.sort(features, dim=1)
        return self.head(torch.cat([features, torch.cumsum(ordered, dim=1) * 0.02], dim=1))


def make() -> Training:
    model = SurvivalNet()
    batches = data.shuffled_batches(*data.digits(), batch=128, count=14, seed=22)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=5e-3), cross_entropy, batches)


WORKLOAD = Workload(
    "running_product", "cumprod, cumsum and sort along rows: compiled code tends to be slower, digits", 22, make
)
