# SPDX-License-Identifier: Apache-2.0
"""A character GPT in the usual small form: the loss is computed inside the model."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, supervised
from benchmarks.workloads.layers import TokenEmbedding, TransformerBlock


class CharGpt(nn.Module):
    def __init__(self, width: int = 128, layers: int = 4, length: int = 64) -> None:
        super().__init__()
        self.embed = TokenEmbedding(128, length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, 4, causal=True) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 128, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.embed(ids))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make() -> Training:
    model = CharGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = data.next_token_batches(data.characters(), batch=8, length=64, count=16, seed=6)
    return supervised(model, optimizer, lambda gpt, batch: gpt(*batch), batches)


WORKLOAD = Workload("char_gpt", "causal attention, GELU, fused AdamW, loss inside the model, source text", 6, make)
