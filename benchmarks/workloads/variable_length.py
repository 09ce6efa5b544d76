# SPDX-License-Identifier: Apache-2.0
"""Batches of different lengths: does a line of source text hold a digit? Padded per batch, masked attention."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, Workload, supervised
from benchmarks.workloads.layers import TokenEmbedding, TransformerBlock

_BATCH, _LENGTHS = 16, (16, 24, 32, 40, 48, 56, 64, 72)


class LineClassifier(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = TokenEmbedding(128, max(_LENGTHS), width)
        self.blocks = nn.ModuleList(TransformerBlock(width, 4) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids.ne(0)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, real[:, None, None, :])
        pooled = (x * real.unsqueeze(2)).sum(1) / real.sum(1, keepdim=True)
        return self.head(pooled).squeeze(1)


def line_batches() -> list[Batch]:
    """One batch per length in `_LENGTHS`, with lines that fit it but not the previous length; half contain digits."""
    lines = [line.strip() for line in data.source_text().splitlines()]
    result: list[Batch] = []
    for longest in _LENGTHS:
        fitting = [line for line in lines if longest - 8 < len(line) <= longest]
        with_digit = [line for line in fitting if any(c.isdigit() for c in line)][: _BATCH // 2]
        without = [line for line in fitting if not any(c.isdigit() for c in line)][: _BATCH - len(with_digit)]
        chosen = with_digit + without
        ids = torch.tensor([list(line.encode().ljust(longest, b"\0")) for line in chosen])
        result.append((ids, torch.tensor([float(line in with_digit) for line in chosen])))
    return result


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


def make() -> Training:
    model = LineClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return supervised(model, optimizer, loss_of, line_batches(), period=len(_LENGTHS))


WORKLOAD = Workload(
    "variable_length", "eight sequence lengths in turn, masked attention, source lines", 14, make, learn_steps=64
)
