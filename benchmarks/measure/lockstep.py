# SPDX-License-Identifier: Apache-2.0
"""Two ranks that train in lockstep: this process measures, and the other process repeats each of its steps.

A pipe tells the other rank which session is next. It costs every step the same, so it cancels in the difference between
two sessions of one group. Weights that a comparison copies are copied in this process only; the time of a step does not
depend on them.
"""

import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.workloads.base import Batch, Training

Builder = Callable[[dict[str, Any]], list[Training]]


@contextmanager
def sessions(build: Builder, spec: dict[str, Any], folder: Path) -> Iterator[list[Training]]:
    """Yields the result of `build(spec)`, a module-level function. Rank 1 builds the same and repeats each step."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    peer = context.Process(target=_follow, args=(build, spec, folder, theirs), daemon=True)
    peer.start()
    theirs.close()
    try:
        _join(spec, folder, 0)
        yield [_led(training, index, ours) for index, training in enumerate(build(spec))]
        ours.send(None)
        distributed.destroy_process_group()
        peer.join(60)
    finally:
        peer.kill()
        peer.join()


def _join(spec: dict[str, Any], folder: Path, rank: int) -> None:
    import agspeed  # noqa: F401  registers the backend

    os.environ["AGSPEED_SOCKET_IFNAME"] = "lo"
    cores = spec["cores"]
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    distributed.init_process_group("agspeed", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)


def _led(training: Training, index: int, peer: Connection) -> Training:
    def step(batch: Batch) -> torch.Tensor:
        peer.send(index)
        return training.step(batch)

    return dataclasses.replace(training, step=step)


def _follow(build: Builder, spec: dict[str, Any], folder: Path, leader: Connection) -> None:
    _join(spec, folder, 1)
    trainings = build(spec)
    counts = [0] * len(trainings)
    try:
        while (index := leader.recv()) is not None:
            training = trainings[index]
            training.step(training.batches[counts[index] % len(training.batches)])
            counts[index] += 1
    except EOFError:  # the leader has ended
        os._exit(1)
    distributed.destroy_process_group()
