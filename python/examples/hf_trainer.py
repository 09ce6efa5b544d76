# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer: calls agspeed.optimize() on the model before the trainer gets it.

python python/examples/hf_trainer.py
"""

import inspect

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

import agspeed


class SourceText(Dataset[dict[str, torch.Tensor]]):
    """Windows of 64 characters of torch's source code. The labels equal the input: the model learns to repeat it."""

    def __init__(self) -> None:
        text = inspect.getsource(torch.nn.functional).encode("ascii", "ignore")
        self.characters = torch.tensor(list(text[:20_000]))

    def __len__(self) -> int:
        return len(self.characters) // 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.characters[64 * index : 64 * (index + 1)]
        return {"input_ids": window, "labels": window}


config = BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
model = agspeed.optimize(BertForMaskedLM(config))
arguments = TrainingArguments(
    "trainer-output", use_cpu=True, max_steps=40, logging_steps=10, save_strategy="no", report_to="none"
)
Trainer(model=model, args=arguments, train_dataset=SourceText()).train()
print(agspeed.report(model))
