# SPDX-License-Identifier: Apache-2.0
"""One rank of a training that is timed in blocks (`quiet_job.py`), with `elastic.run` or as a plain loop.

Arguments: the path of a socket, and "elastic" or "plain". The rank connects to the socket. For each line with a number,
it makes that many steps and answers with a line of two numbers: the seconds from the first step to the end of the last
one, and the seconds of them in `State.advance`. The end of the connection ends the training.
"""

import socket
import sys
import time
from collections.abc import Callable

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from agspeed import elastic

_WIDTH, _ROWS = 512, 32


def _serve(path: str, step: Callable[[], float]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rw", encoding="ascii") as lines:
            for line in lines:
                begun = time.perf_counter()
                advancing = sum(step() for _ in range(int(line)))
                print(time.perf_counter() - begun, advancing, file=lines, flush=True)


def _stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, advance: Callable[[], None] | None = None
) -> Callable[[], float]:
    """Returns: a function that makes a step, and returns the seconds of it in `advance`."""
    wrapped, batch = DistributedDataParallel(model), torch.randn(_ROWS, _WIDTH)

    def step() -> float:
        optimizer.zero_grad()
        wrapped(batch).square().mean().backward()
        optimizer.step()
        if advance is None:
            return 0.0
        begun = time.perf_counter()
        advance()
        return time.perf_counter() - begun

    return step


def main() -> None:
    path, way = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if way == "plain":
        distributed.init_process_group("agspeed")
        _serve(path, _stepper(model, optimizer))
        distributed.destroy_process_group()
        return

    @elastic.run
    def train(state: elastic.State) -> None:
        _serve(path, _stepper(state.model, state.optimizer, state.advance))

    train(elastic.State(model=model, optimizer=optimizer))


if __name__ == "__main__":
    main()
