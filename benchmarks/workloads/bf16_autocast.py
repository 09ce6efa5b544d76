# SPDX-License-Identifier: Apache-2.0
"""The character GPT's blocks under bf16 autocast: casts around every matrix product."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, Workload, supervised
from benchmarks.workloads.char_gpt import CharGpt


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(*batch)


def make() -> Training:
    model = CharGpt(width=192, layers=2, length=96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = data.next_token_batches(data.characters(), batch=8, length=96, count=16, seed=15)
    return supervised(model, optimizer, loss_of, batches)


WORKLOAD = Workload("bf16_autocast", "character GPT under bf16 autocast, source text", 15, make)
