# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over all network interfaces of every host.

torchrun --nproc-per-node 2 python/examples/ddp.py

On four hosts, run the commands below on each host. HOST0 is the address of one of them. All hosts have the same key
file; `agspeed doctor` says how to make one.

export AGSPEED_JOB_KEY_FILE=$HOME/job.key
torchrun --nnodes 4 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29400 python/examples/ddp.py
"""

import torch
from digits import classifier, dataset
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import agspeed  # noqa: F401 - registers the backend "agspeed"

distributed.init_process_group("agspeed")  # instead of "gloo"
model = DistributedDataParallel(classifier())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset(), drop_last=True)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for images, labels in DataLoader(dataset(), batch_size=64, sampler=sampler, drop_last=True):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    if distributed.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f}, {distributed.get_world_size()} ranks")
distributed.destroy_process_group()
