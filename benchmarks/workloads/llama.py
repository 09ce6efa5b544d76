# SPDX-License-Identifier: Apache-2.0
"""A Llama decoder from a transformers configuration, random weights, characters of source text."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, Workload, supervised


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    ids, _ = batch
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def make() -> Training:
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=352,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = data.next_token_batches(data.characters(), batch=8, length=64, count=16, seed=8)
    return supervised(model, optimizer, loss_of, batches)


WORKLOAD = Workload(
    "llama", "transformers Llama: RMSNorm, rotary positions, SwiGLU, grouped heads, source text", 8, make
)
