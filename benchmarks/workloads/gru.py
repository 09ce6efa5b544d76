# SPDX-License-Identifier: Apache-2.0
"""torch's own GRU between feed-forward stacks, which can be compiled; Dynamo leaves the recurrent operator eager."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


class CharGru(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.before = nn.Sequential(*(_feed_forward(width) for _ in range(3)))
        self.gru = nn.GRU(width, width, batch_first=True)
        self.after = nn.Sequential(*(_feed_forward(width) for _ in range(3)))
        self.head = nn.Linear(width, 128)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.gru(self.before(self.embed(ids)))
        return self.head(self.after(hidden))


def _feed_forward(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 2 * width),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(2 * width, width),
        nn.Tanh(),
    )


def make() -> Training:
    model = CharGru()
    batches = data.next_token_batches(data.characters(), batch=16, length=32, count=16, seed=27)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=2e-3), cross_entropy, batches)


WORKLOAD = Workload("gru", "nn.GRU, which Dynamo does not capture, between feed-forward stacks, source text", 27, make)
