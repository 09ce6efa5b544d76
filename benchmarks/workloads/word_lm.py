# SPDX-License-Identifier: Apache-2.0
"""A word model with a vocabulary of 6,000: softmax and cross-entropy over wide rows."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads import data
from benchmarks.workloads.base import Training, Workload, supervised

_VOCABULARY = 6000


class WordModel(nn.Module):
    """Predicts the next word from the mean of the words so far."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        counts = torch.arange(1, ids.shape[1] + 1, device=ids.device).unsqueeze(1)
        context = self.norm(self.embed(ids).cumsum(1) / counts)
        return F.cross_entropy(self.head(context).flatten(0, 1), targets.flatten())


def make() -> Training:
    model = WordModel()
    batches = data.next_token_batches(data.words(_VOCABULARY), batch=16, length=16, count=16, seed=21)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    return supervised(model, optimizer, lambda words, batch: words(*batch), batches)


WORKLOAD = Workload("word_lm", "cross-entropy over 6,000 words, embedding gradient, source text", 21, make)
