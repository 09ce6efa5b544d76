# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: calls agspeed.optimize() on the model that `prepare` returns.

python python/examples/accelerate_trainer.py
"""

import torch
from accelerate import Accelerator
from digits import classifier, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import agspeed

accelerator = Accelerator(cpu=True)
model = classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(dataset(), batch_size=256, shuffle=True, drop_last=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model = agspeed.optimize(model)
for epoch in range(20):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, {agspeed.status(model)}")
accelerator.print(agspeed.report(model))
