# SPDX-License-Identifier: Apache-2.0
"""DLRM-like click model: embeddings of binned columns, dense network, pairwise interaction, on a medical table."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, Workload, supervised

_BINS, _WIDTH, _TABLES = 64, 32, 20


class Dlrm(nn.Module):
    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(_BINS, _WIDTH) for _ in range(_TABLES))
        self.bottom = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, _WIDTH), nn.ReLU())
        pairs = (_TABLES + 1) * _TABLES // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + _WIDTH, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.register_buffer("rows", torch.tril_indices(_TABLES + 1, _TABLES + 1, -1), persistent=False)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(table(categories[:, i]) for i, table in enumerate(self.tables))], dim=1)
        interaction = torch.bmm(features, features.transpose(1, 2))[:, self.rows[0], self.rows[1]]
        return self.top(torch.cat([bottom, interaction], dim=1)).squeeze(1)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    dense, categories, target = batch
    return nn.functional.binary_cross_entropy_with_logits(model(dense, categories), target)


def make() -> Training:
    columns, target = data.table("breast_cancer")
    ranks = columns.argsort(0).argsort(0) * _BINS // len(columns)
    rows = torch.arange(len(columns)).unsqueeze(1)
    batches = []
    for picked, _ in data.shuffled_batches(rows, rows, batch=128, count=16, seed=10):
        index = picked.squeeze(1)
        batches.append((columns[index, :10].contiguous(), ranks[index, 10:].contiguous(), target[index]))
    model = Dlrm()
    return supervised(model, torch.optim.Adagrad(model.parameters(), lr=0.02), loss_of, batches)


WORKLOAD = Workload("dlrm", "20 embedding tables, pairwise interaction, Adagrad, breast-cancer table", 10, make)
