# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny model by DistributedDataParallel on the backend "agspeed", under any launcher.

    python training.py FOLDER NUM_STEPS [WAIT_AT]

It begins with the checkpoint in FOLDER, if there is one. SIGUSR1 is the notice that the job has to leave: all ranks
stop at the same step, the first one writes a checkpoint, and they exit with status 75. At the step WAIT_AT, the first
run waits for the notice. Each rank writes FOLDER/rank.N, and the first one writes FOLDER/weights.pt at the end.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["AGAIN", "weights_of_one_process"]

AGAIN = 75
_SLICE_S = 0.2


def _model() -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _batch(step: int, rank: int) -> torch.Tensor:
    import torch

    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))


def _weights(model: Any) -> torch.Tensor:
    import torch

    return torch.cat([each.detach().flatten() for each in model.parameters()])


def weights_of_one_process(num_ranks: int, num_steps: int) -> torch.Tensor:
    """Returns the weights after the same training in this process alone."""
    model, optimizer = _model()
    for step in range(num_steps):
        optimizer.zero_grad()
        for rank in range(num_ranks):
            (model(_batch(step, rank)).square().mean() / num_ranks).backward()
        optimizer.step()
    return _weights(model)


def main(folder: Path, num_steps: int, wait_at: int | None) -> None:
    is_noticed = []
    signal.signal(signal.SIGUSR1, lambda number, frame: is_noticed.append(number))

    import torch
    from torch import distributed

    import agspeed  # noqa: F401, registers the backend in a checkout

    distributed.init_process_group("agspeed")
    model, optimizer = _model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    checkpoint, step = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        step, wait_at = kept["step"], None
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])

    def must_leave() -> bool:
        """Whether any rank has got the notice. All ranks get the same answer."""
        found = torch.tensor(float(bool(is_noticed)))
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return bool(found)

    rank = distributed.get_rank()
    (folder / f"rank.{rank}").write_text(f"{socket.gethostname()} {os.getpid()} from {step}\n")
    while step < num_steps:
        if must_leave():
            if rank == 0:
                kept = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(kept, folder / "draft.pt")
                (folder / "draft.pt").rename(checkpoint)
            distributed.destroy_process_group()
            sys.exit(AGAIN)
        if step == wait_at:
            if rank == 0:
                (folder / "waits").touch()
            time.sleep(_SLICE_S)
            continue
        optimizer.zero_grad()
        wrapped(_batch(step, rank)).square().mean().backward()
        optimizer.step()
        step += 1
    weights = _weights(model)
    first = weights.clone()
    distributed.broadcast(first, 0)
    assert torch.equal(first, weights), f"rank {rank} has other weights than rank 0"
    if rank == 0:
        torch.save(weights, folder / "draft.pt")
        (folder / "draft.pt").rename(folder / "weights.pt")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
