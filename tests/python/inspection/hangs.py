# SPDX-License-Identifier: Apache-2.0
"""Jobs that hang until a file exists. Each function runs on every rank of a group of two, and returns a sum that is
right only if both ranks went on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset

RIGHT = [3.0] * 4
_LONGEST_S = 240.0


def _wait_for(file: str) -> None:
    end = time.monotonic() + _LONGEST_S
    while not Path(file).exists():
        assert time.monotonic() < end, f"{file} was not made within {_LONGEST_S} s"
        time.sleep(0.01)


def _sum(group: distributed.ProcessGroup | None = None, count: int = 4) -> list[float]:
    values = torch.full((count,), float(distributed.get_rank() + 1))
    distributed.all_reduce(values, group=group)
    return values.tolist()


def late_rank(go: str) -> list[float]:
    """Rank 1 does not call."""
    _sum()
    if distributed.get_rank() == 1:
        _wait_for(go)
    return _sum()


def data_loader(go: str) -> list[float]:
    """Rank 1 waits in its data loader."""

    class Slow(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> torch.Tensor:
            if distributed.get_rank() == 1:
                _wait_for(go)
            return torch.zeros(1)

    _sum()
    for _ in DataLoader(Slow()):
        found = _sum()
    return found


def other_order(go: str) -> list[float]:
    """The ranks use two groups in different orders. A thread of rank 1 then makes the call that rank 0 waits for."""
    left, right = distributed.new_group(), distributed.new_group()
    _sum(left), _sum(right)
    if distributed.get_rank() == 0:
        return [(a + b) / 2 for a, b in zip(_sum(left), _sum(right), strict=True)]
    late: list[float] = []

    def call() -> None:
        _wait_for(go)
        late.extend(_sum(left))

    thread = threading.Thread(target=call)
    thread.start()
    first = _sum(right)
    thread.join()
    return [(a + b) / 2 for a, b in zip(first, late, strict=True)]


def other_shape(go: str, store: str) -> list[float]:
    """The ranks call with different shapes. Their group ends, and they make another one."""
    rank = distributed.get_rank()
    try:
        _sum(count=4 + rank)
    except distributed.DistBackendError:
        _wait_for(go)
    else:
        return []
    distributed.destroy_process_group()
    distributed.init_process_group("agspeed", init_method=f"file://{store}", rank=rank, world_size=2)
    return _sum()


def missing_rank(go: str, store: str) -> list[float]:
    """Rank 1 does not join the next group."""
    rank = distributed.get_rank()
    distributed.destroy_process_group()
    if rank == 1:
        _wait_for(go)
    distributed.init_process_group("agspeed", init_method=f"file://{store}", rank=rank, world_size=2)
    return _sum()


def many_steps(go: str) -> list[float]:
    """The ranks make steps until the file exists at rank 0. After its first step, each rank makes a file."""
    while True:
        found = _sum()
        Path(f"{go}-{distributed.get_rank()}").touch()
        ends = torch.tensor([float(Path(go).exists())])
        distributed.broadcast(ends, 0)
        if ends.item():
            return found
        time.sleep(0.01)
