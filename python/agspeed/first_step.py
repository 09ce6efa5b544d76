# SPDX-License-Identifier: Apache-2.0
"""One training step on all ranks of a job, which shows that they reach each other: `agspeed cluster up` runs it.

Each rank is a process that runs `python -m agspeed.first_step`. So Python imports the package first, which registers
the backend. Rank 0 prints one line.
"""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["main"]

_WIDTH = 64


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("agspeed")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(_WIDTH, _WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(distributed.get_rank())
    loss = model(torch.randn(8, _WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    first = weights.clone()
    distributed.broadcast(first, 0)
    if not torch.equal(first, weights):
        raise RuntimeError(f"rank {distributed.get_rank()} has other weights than rank 0 after the step")
    if distributed.get_rank() == 0:
        print(f"one training step on {distributed.get_world_size()} ranks, with equal weights after it", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
