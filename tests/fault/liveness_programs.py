# SPDX-License-Identifier: Apache-2.0
"""The programs that ranks run in `test_liveness.py`: `python liveness_programs.py NAME`, one rank per host of a bed.

A rank prints "ready" when all ranks are connected. At the end it prints "done", or "failed: MESSAGE" if an
operation failed.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import distributed as dist

import agspeed  # noqa: F401  registers the backend


def say(text: str) -> None:
    print(text, flush=True)


def sums_for_ever() -> None:
    while True:
        sums(steps=100)


def sums(steps: int = 400) -> None:
    """Runs short and long operations and checks each result."""
    size = dist.get_world_size()
    for step in range(steps):
        tensor = torch.full((1 << (step % 5 * 4),), float(dist.get_rank() + step))
        dist.all_reduce(tensor)
        assert float(tensor.min()) == float(tensor.max()) == size * step + size * (size - 1) / 2, step
        time.sleep(0.005)


def computing() -> None:
    """Rank 1 holds Python's GIL for seconds while the others wait for it."""
    if dist.get_rank() == 1:
        start = time.monotonic()
        while time.monotonic() - start < 4:
            sum(range(50_000_000))
    sums(steps=5)


def chain() -> None:
    """Each rank receives from the next one, and the last rank sleeps. Only one rank communicates with the last one."""
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(600)
    dist.recv(torch.empty(10), src=dist.get_rank() + 1)


PROGRAMS = {"sums": sums, "sums_for_ever": sums_for_ever, "computing": computing, "chain": chain}


def main(name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("agspeed")
    dist.barrier()
    say("ready")
    try:
        PROGRAMS[name]()
    except dist.DistBackendError as error:
        say(f"failed: {str(error).replace(chr(10), ' ')}")
        time.sleep(2)  # stays alive, so that others learn of the failure from a message and not from this process's end
        sys.exit(3)
    say("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
