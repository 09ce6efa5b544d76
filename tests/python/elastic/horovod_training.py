# SPDX-License-Identifier: Apache-2.0
"""A Horovod script that members of an elastic job run, with the arguments and the notes of training.py."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import agspeed.horovod.torch as hvd
from tests.python.elastic.training import PAUSE_S, digest, say


def main() -> None:
    torch.set_num_threads(1)
    num_batches, kind, size = int(sys.argv[1]), sys.argv[3], int(sys.argv[4])
    hvd.init()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=1e-3), model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0, resets=0)

    def count_reset() -> None:
        state.resets += 1

    state.register_reset_callbacks([count_reset])

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        say("epoch", hvd.rank(), hvd.size(), state.batch)
        while state.batch < num_batches or (kind == "until joined" and hvd.size() < size):
            generator = torch.Generator().manual_seed(1000 * state.batch + hvd.rank())
            state.optimizer.zero_grad()
            state.model(torch.randn(8, 16, generator=generator)).square().mean().backward()
            state.optimizer.step()
            state.batch += 1
            time.sleep(PAUSE_S)
            if state.batch % 5 == 0:
                state.commit()

    train(state)
    say("done", state.batch, digest(model), state.resets)
    hvd.shutdown()


if __name__ == "__main__":
    main()
