# SPDX-License-Identifier: Apache-2.0
"""BERT masked-language model from a transformers configuration, random weights, characters of source text."""

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, Workload, supervised

_MASK, _VOCABULARY = 127, 128


def masked_batches(batch: int, length: int, count: int, seed: int) -> list[Batch]:
    """15 % of the characters replaced by the mask; labels are -100 elsewhere."""
    chosen, result = data.generator(seed), []
    for ids, _ in data.next_token_batches(data.characters(), batch, length, count, seed):
        hidden = torch.rand(ids.shape, generator=chosen) < 0.15
        result.append((ids.masked_fill(hidden, _MASK), ids.masked_fill(~hidden, -100)))
    return result


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    ids, labels = batch
    return model(input_ids=ids, labels=labels).loss


def make() -> Training:
    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )
    model = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return supervised(model, optimizer, loss_of, masked_batches(8, 64, count=16, seed=7))


WORKLOAD = Workload(
    "bert", "transformers BERT: keyword inputs, ModelOutput, dropout, source text", 7, make, learn_steps=40
)
