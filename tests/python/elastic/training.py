# SPDX-License-Identifier: Apache-2.0
"""A training that members of an elastic job run. The tests kill some of them.

Arguments: the number of steps, a folder, a kind of training, and the number of members at the begin. Each member writes
to FOLDER/PID, one line at a time: "epoch RANK SIZE STEP" when it begins an epoch, "status STATE PLAN" when its model's
status has changed, "done STEP WEIGHTS RATE" at the end.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agspeed
from agspeed import elastic

PAUSE_S = 0.01


def say(*words: object) -> None:
    with (Path(sys.argv[2]) / str(os.getpid())).open("a") as file:
        print(*words, file=file)


def digest(model: nn.Module) -> str:
    weights = torch.cat([value.detach().flatten().double() for value in model.state_dict().values()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    torch.set_num_threads(1)
    num_steps, kind, size = int(sys.argv[1]), sys.argv[3], int(sys.argv[4])
    torch.manual_seed(os.getpid())  # other first weights in each process
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4))
    if kind == "optimized":
        agspeed.optimize(model, mode="deterministic", backends=["aot"], cache_dir=Path(sys.argv[2]) / "cache")
    if kind in ("tuned", "followed"):
        is_new = len([path for path in Path(sys.argv[2]).iterdir() if path.name.isdecimal()]) >= size
        mode = "deterministic" if kind == "followed" and not is_new else "max"
        agspeed.optimize(model, mode=mode, backends=["aot"], cache_dir=Path(sys.argv[2]) / f"cache-{os.getpid()}")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state = elastic.State(model=model, optimizer=optimizer, seen=[], rate=1.0)
    state.on_change(lambda old, new: setattr(state, "rate", state.rate * new / old))

    was_torn: list[bool] = []
    latest = [0]
    statuses: list[str] = []

    def goes_on() -> bool:
        """Whether a rank has not decided yet, or the test has not allowed an end."""
        if kind not in ("tuned", "followed"):
            return False
        if not statuses or agspeed.status(model) != statuses[-1]:
            statuses.append(str.__str__(agspeed.status(model)))
            say("status", str.__str__(agspeed.status(model)), agspeed.report(model).to_dict()["decision"]["chosen"])
        may_end = agspeed.status(model) != "tuning" and (Path(sys.argv[2]) / "may end").exists()
        num_waiting = torch.tensor(float(not may_end))
        dist.all_reduce(num_waiting)
        return bool(num_waiting)

    @elastic.run
    def train(state: elastic.State) -> None:
        wrapped = DistributedDataParallel(state.model, broadcast_buffers=False)
        assert state.num_steps >= latest[0] - 1, f"steps {state.num_steps} to {latest[0]} were lost"
        say("epoch", dist.get_rank(), dist.get_world_size(), state.num_steps)
        while state.num_steps < num_steps or (kind == "until joined" and dist.get_world_size() < size) or goes_on():
            if kind == "raises" and state.num_steps == 20 and dist.get_rank() == 1 and dist.get_world_size() > 1:
                raise ValueError("a mistake in the script")
            generator = torch.Generator().manual_seed(1000 * state.num_steps + dist.get_rank())
            state.optimizer.zero_grad()
            wrapped(torch.randn(8, 16, generator=generator)).square().mean().backward()
            if kind == "torn" and state.num_steps == 20 and dist.get_rank() == 0 and not was_torn:
                was_torn.append(True)
                raise dist.DistBackendError("this rank has not made its step")
            state.optimizer.step()
            if kind == "torn" and state.num_steps == 20 and dist.get_rank() == 1 and not was_torn:
                was_torn.append(True)
                raise dist.DistBackendError("this rank has made its step, and has not counted it")
            if kind == "fails" and state.num_steps == 20:
                raise dist.DistBackendError("this fails in each epoch")
            state.seen = [*state.seen[-3:], state.num_steps]
            time.sleep(PAUSE_S)
            latest[0] = state.num_steps + 1
            state.advance()

    train(state)
    assert state.seen == list(range(state.num_steps - 4, state.num_steps)), state.seen
    parameters = nn.ParameterList(model.parameters())
    say("done", state.num_steps, digest(parameters), f"{state.rate:g}")


if __name__ == "__main__":
    main()
