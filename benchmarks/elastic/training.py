# SPDX-License-Identifier: Apache-2.0
"""The training of one member of an elastic job, or of one rank that torchrun restarts.

Arguments: FOLDER, seconds of compute per step, and "elastic" or "restart". The training ends when the file FOLDER/stop
exists. The process appends lines to FOLDER/PID, with the seconds of the monotonic clock, which all processes share:

    epoch SECONDS RANK SIZE STEP    it begins to train in a group of SIZE ranks, from STEP on
    step SECONDS STEP               it has finished step number STEP
    error SECONDS                   a collective has failed
    end SECONDS STEP DIGEST         it has finished, with weights of this digest
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from agspeed import elastic

_WIDTH = 512
_SAVED_EVERY = 10


class Notes:
    def __init__(self, folder: Path) -> None:
        self._file = (folder / str(os.getpid())).open("a", buffering=1, encoding="ascii")

    def add(self, kind: str, *values: object) -> None:
        print(kind, time.monotonic(), *values, file=self._file)


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
    return model, torch.optim.Adam(model.parameters())


def _wants_stop(folder: Path) -> bool:
    """Whether rank 0 has seen the file; all ranks get the same answer."""
    found = torch.tensor(float((folder / "stop").exists()))
    distributed.broadcast(found, 0)
    return bool(found)


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, pause: float, folder: Path) -> Iterator[int]:
    """Makes one step of the optimizer before each number that it yields, until the training has to end."""
    step = first
    while not _wants_stop(folder):
        generator = torch.Generator().manual_seed(1000 * step + distributed.get_rank())
        optimizer.zero_grad()
        time.sleep(pause)
        model(torch.randn(4, _WIDTH, generator=generator)).square().mean().backward()
        optimizer.step()
        step += 1
        yield step


def _digest(model: nn.Module) -> str:
    weights = torch.cat([value.detach().flatten() for value in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]


def _elastic(folder: Path, pause: float, notes: Notes) -> None:
    model, optimizer = _model()
    state = elastic.State(model=model, optimizer=optimizer)

    @elastic.run
    def train(state: elastic.State) -> None:
        wrapped = DistributedDataParallel(state.model)
        notes.add("epoch", distributed.get_rank(), distributed.get_world_size(), state.num_steps)
        try:
            for step in _steps(wrapped, state.optimizer, state.num_steps, pause, folder):
                notes.add("step", step)
                state.advance()
        except distributed.DistError:
            notes.add("error")
            raise

    train(state)
    notes.add("end", state.num_steps, _digest(model))


def _restarted(folder: Path, pause: float, notes: Notes) -> None:
    """The same under torchrun, with Gloo: a checkpoint every few steps, which all ranks read after a restart."""
    distributed.init_process_group("gloo")
    model, optimizer = _model()
    saved, step = folder / "checkpoint.pt", 0
    if saved.exists():
        content = torch.load(saved, weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        step = content["step"]
    wrapped = DistributedDataParallel(model)
    notes.add("epoch", distributed.get_rank(), distributed.get_world_size(), step)
    for number in _steps(wrapped, optimizer, step, pause, folder):
        step = number
        notes.add("step", step)
        if step % _SAVED_EVERY == 0 and distributed.get_rank() == 0:
            draft = saved.with_suffix(".draft")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
            draft.replace(saved)
    notes.add("end", step, _digest(model))


def main() -> None:
    folder, pause, way = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    notes = Notes(folder)
    (_elastic if way == "elastic" else _restarted)(folder, pause, notes)


if __name__ == "__main__":
    main()
