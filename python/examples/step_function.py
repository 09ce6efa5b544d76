# SPDX-License-Identifier: Apache-2.0
"""Optimizes a whole step as one function, so that loss, gradients and update can be compiled together.

python python/examples/step_function.py
"""

import torch
from digits import classifier, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import agspeed

model = classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@agspeed.optimize
def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


for epoch in range(20):
    for batch in DataLoader(dataset(), batch_size=256, shuffle=True, drop_last=True):
        loss = step(*batch)
    print(f"epoch {epoch}: loss {loss.item():.3f}, {agspeed.status(step)}")
print(agspeed.report(step))
