# SPDX-License-Identifier: Apache-2.0
"""The program of each host in `test_injected_stragglers.py`: two ranks, which train while faults come and go.

    python injected_program.py FOLDER

FOLDER/fault has the fault as JSON: {"kind": "", "ranks": []}, with the kind "compute", "host", "input" or "stop".
Compute and input are sleeps, so that ranks do not need cores of their own. Rank 0 prints a line of JSON after each
comparison of all ranks: how many there were, and the findings so far.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agspeed
from agspeed.distributed.stragglers import verdict_of

RANKS_PER_HOST = 2
_WIDTH = 500
_COMPUTE_S, _INPUT_S, _SLOW_S = 0.04, 0.01, 0.08


class _Sleeper(nn.Module):
    """A model whose forward takes at least some seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _WIDTH))
        self.seconds = _COMPUTE_S

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.layers(batch)  # type: ignore[no-any-return]


def train(fault: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("agspeed")
    torch.manual_seed(3)
    inner = _Sleeper()
    model = DistributedDataParallel(agspeed.optimize(inner, mode="deterministic", backends=["eager"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch, num_rounds = torch.randn(2, _WIDTH), 0
    while True:
        kind = _kind(fault)
        slower = 1 + _SLOW_S / _COMPUTE_S * (kind == "host")  # all work of the host
        inner.seconds = _COMPUTE_S * slower + _SLOW_S * (kind == "compute")
        for _ in range(4):
            time.sleep(_INPUT_S * slower + _SLOW_S * (kind == "input"))
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        ends = torch.tensor(float(kind == "stop"))
        dist.all_reduce(ends, op=dist.ReduceOp.MIN)
        if ends:
            break
        verdict = verdict_of(inner)
        if dist.get_rank() == 0 and verdict is not None and verdict.rounds > num_rounds:
            num_rounds = verdict.rounds
            print(json.dumps(dataclasses.asdict(verdict)), flush=True)
    dist.destroy_process_group()


def _kind(fault: Path) -> str:
    """The kind of the fault, if this rank has it; else an empty text."""
    found: dict[str, Any] = json.loads(fault.read_text())
    return str(found["kind"]) if dist.get_rank() in found["ranks"] else ""


def main(folder: str) -> int:
    """Runs the ranks of this host, each in a process of its own."""
    host, num_hosts = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    started = []
    for local_rank in range(RANKS_PER_HOST):
        variables = {
            "RANK": str(RANKS_PER_HOST * host + local_rank),
            "WORLD_SIZE": str(RANKS_PER_HOST * num_hosts),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(RANKS_PER_HOST),
        }
        started.append(subprocess.Popen([sys.executable, __file__, folder, "rank"], env=os.environ | variables))
    return max(process.wait() for process in started)


if __name__ == "__main__":
    if sys.argv[2:]:
        train(Path(sys.argv[1], "fault"))
    else:
        sys.exit(main(sys.argv[1]))
