# SPDX-License-Identifier: Apache-2.0
"""One process: shows the line that switches agspeed on, and the report.

python python/examples/one_process.py
"""

import torch
from digits import classifier, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import agspeed

# The next line is the only new one. The default mode, "auto", tunes only while training has earned the time for it.
model = agspeed.optimize(classifier(), mode="max")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(60):
    for images, labels in DataLoader(dataset(), batch_size=256, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    if epoch % 10 == 9:
        print(f"epoch {epoch}: loss {loss.item():.3f}, {agspeed.status(model)}")

agspeed.report(model).save("agspeed-report.html")
print(agspeed.report(model))
