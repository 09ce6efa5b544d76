# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of fusion plans, the timeline and tuning."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

import agspeed.horovod.torch as hvd
from agspeed.horovod.torch import job
from tests.python.distributed import training
from tests.python.horovod import programs

_ORDERS = ("time", "size", "priority", "model")


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def train(steps: int, plan_every: int = 0, settings: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns weights and statistics after `steps`. The coordinator changes its plan every `plan_every` steps."""
    with variables(**(settings or {})), programs.job() as (rank, _size):
        module = training.model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9), module.named_parameters()
        )
        group = job.current().group
        for step, batch in enumerate(training.batches(steps)):
            if plan_every and step % plan_every == 0 and rank == 0:
                number = step // plan_every
                group.set_plan([0, 64, 1 << 10, 1 << 20][number % 4], _ORDERS[number // 4 % 4], number + 1)
            optimizer.zero_grad()
            module(batch).square().mean().backward()
            optimizer.step()
        return {"weights": training.weights(module), "stats": group.stats()}


def trace(path: str, settings: dict[str, str]) -> None:
    """Runs one operation before a trace, two within it and one after it. Rank 0 writes it; barriers separate the
    others."""
    with variables(HOROVOD_TIMELINE="DYNAMIC", **settings), programs.job():
        hvd.allreduce(torch.ones(3), name="before")
        hvd.barrier()
        hvd.start_timeline(path, mark_cycles=True)
        hvd.barrier()
        hvd.grouped_allreduce([torch.ones(3), torch.ones(4)], name="within")
        hvd.allgather(torch.ones(2), name="gathered")
        hvd.barrier()
        hvd.stop_timeline()
        hvd.barrier()
        hvd.allreduce(torch.ones(3), name="after")


def traced_from_the_start(path: str) -> None:
    with variables(HOROVOD_TIMELINE=path), programs.job():
        hvd.allreduce(torch.ones(3), name="reduced")


def trace_into_nowhere(path: str) -> str:
    with variables(HOROVOD_TIMELINE="DYNAMIC"), programs.job() as (rank, _size):
        return programs.message_of(lambda: hvd.start_timeline(path)) if rank == 0 else ""
