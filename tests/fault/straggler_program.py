# SPDX-License-Identifier: Apache-2.0
"""The program that ranks run in `test_stragglers.py`: trains until all ranks know a straggler, or for LIMIT seconds.

    python straggler_program.py LIMIT

Rank 0 prints a line of JSON after the first rounds, and another one at the end.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agspeed
from agspeed.distributed.stragglers import verdict_of

_ROUNDS = 8
"""Comparisons after which the rails' own rates are known."""


def main(limit_s: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("agspeed")
    torch.manual_seed(3)
    inner = nn.Sequential(nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 700))
    model = DistributedDataParallel(agspeed.optimize(inner, mode="deterministic", backends=["eager"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch, begun, is_ready = torch.randn(2, 700), time.monotonic(), False
    while True:
        for _ in range(5):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        verdict = verdict_of(inner)
        assert verdict is not None
        if verdict.rounds >= _ROUNDS and not is_ready:
            is_ready = True
            _tell({"ready": True})
        knows = torch.tensor(float(bool(verdict.lasting) or time.monotonic() - begun > limit_s))
        dist.all_reduce(knows, op=dist.ReduceOp.MIN)
        if knows:
            break
    report = agspeed.report(model).to_dict()
    _tell({"lasting": report["stragglers"]["lasting"], "rounds": report["stragglers"]["rounds"]})
    dist.destroy_process_group()


def _tell(line: dict[str, object]) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
