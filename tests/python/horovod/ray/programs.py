# SPDX-License-Identifier: Apache-2.0
"""Functions that Ray's workers run in tests. They train one model on rows that the ranks share out."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import nn

WIDTH, ROWS, STEPS = 6, 8, 4


def model() -> nn.Module:
    """Returns a model that is the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))


def fit(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int = 0, size: int = 1) -> None:
    """Trains on every size-th row of the same batches."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        rows = torch.randn(ROWS, WIDTH, generator=generator)[rank::size]
        optimizer.zero_grad()
        module(rows).square().mean().backward()
        optimizer.step()


def weights(module: nn.Module) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in module.parameters()]


def trained_alone() -> list[list[float]]:
    module = model()
    fit(module, torch.optim.SGD(module.parameters(), lr=0.1))
    return weights(module)


def trained_by_horovod() -> list[list[float]]:
    import agspeed.horovod.torch as hvd

    hvd.init()
    try:
        module = model()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        fit(module, hvd.DistributedOptimizer(optimizer, module.named_parameters()), hvd.rank(), hvd.size())
        hvd.barrier()  # no rank leaves while another still waits
        return weights(module)
    finally:
        hvd.shutdown()


def trained_by_ddp() -> list[list[float]]:
    """Trains over the default group."""
    distributed = torch.distributed
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    wrapped = nn.parallel.DistributedDataParallel(module)
    fit(wrapped, optimizer, distributed.get_rank(), distributed.get_world_size())
    return weights(module)


def place(*names: str) -> dict[str, Any]:
    """Returns the place of this rank, and variables of its environment."""
    import agspeed.horovod.torch as hvd

    hvd.init()
    try:
        where = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
        return {"place": where, **{name: os.environ.get(name) for name in names}}
    finally:
        hvd.barrier()
        hvd.shutdown()


def die_before_the_group_forms(lost: int) -> None:
    import agspeed.horovod.torch as hvd

    if os.environ["HOROVOD_RANK"] == str(lost):
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.init()


def fail() -> None:
    raise LookupError(f"rank {os.environ['HOROVOD_RANK']} has no data")


class Counter:
    """An object that workers keep between calls."""

    def __init__(self, first: int, step: int = 1) -> None:
        self.value = first + step * int(os.environ["HOROVOD_RANK"])
