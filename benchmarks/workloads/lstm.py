# SPDX-License-Identifier: Apache-2.0
"""torch's own LSTM on characters: one opaque recurrent operator, which Dynamo leaves eager."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, cross_entropy, supervised


class CharLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 128)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(ids))
        return self.head(hidden)


def make() -> Training:
    model = CharLstm()
    batches = data.next_token_batches(data.characters(), batch=16, length=32, count=16, seed=9)
    return supervised(model, torch.optim.Adam(model.parameters(), lr=5e-3), cross_entropy, batches)


WORKLOAD = Workload("lstm", "nn.LSTM over 32 characters, which Dynamo does not capture, source text", 9, make)
