# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of any-source receives, barriers with names, flight records and counters."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import agspeed.distributed as agspeed_distributed


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- receives from any source -----------------------------------------------------------------------------------------


def received_from_any_rank(count: int, rounds: int) -> list[tuple[int, float]]:
    """Returns (source, value) of the messages in the order of rank 0's receives. The others send 100 r + round."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    if rank == 0:
        for _ in range(rounds * (size - 1)):
            tensor = torch.zeros(count)
            source = dist.recv(tensor, tag=5)
            assert torch.equal(tensor, torch.full((count,), float(tensor[0])))
            found.append((source, float(tensor[0])))
    else:
        for round_ in range(rounds):
            dist.send(torch.full((count,), 100.0 * rank + round_), dst=0, tag=5)
    dist.barrier()
    return found


def received_beside_known_sources() -> list[float]:
    """Has two any-source receives in flight, and between them a receive from the last rank with another tag."""
    rank, size = dist.get_rank(), dist.get_world_size()
    last = size - 1
    found: list[float] = []
    if rank == 0:
        tensors = [torch.zeros(3) for _ in range(3)]
        works = [dist.irecv(tensors[0], tag=1), dist.irecv(tensors[1], src=last, tag=2), dist.irecv(tensors[2], tag=1)]
        for work in works:
            work.wait()
        assert works[0].source_rank() == works[2].source_rank() == last
        found = [float(tensor[0]) for tensor in tensors]
    elif rank == last:
        time.sleep(0.05)  # by then the receives have started
        for value, tag in ((1.0, 1), (2.0, 2), (3.0, 1)):
            dist.send(torch.full((3,), value), dst=0, tag=tag)
    dist.barrier()
    return found


def receive_without_send() -> str:
    group = dist.new_group(timeout=datetime.timedelta(seconds=0.5))
    return error_of(lambda: dist.recv(torch.zeros(2), group=group)) if dist.get_rank() == 0 else ""


def short_wait() -> str:
    """Returns the error of a wait that ends before the message comes."""
    if dist.get_rank() > 1:
        return ""
    if dist.get_rank() == 1:
        time.sleep(0.5)
        dist.send(torch.ones(2), dst=0)
        return ""
    work = dist.irecv(torch.zeros(2), src=1)
    message = error_of(lambda: work.wait(datetime.timedelta(seconds=0.2)))
    work.wait()
    return message


# --- barriers that name missing ranks ---------------------------------------------------------------------------------


def barrier_without_time() -> str:
    """Returns the error of torch's own method on rank 0, which enters the barrier alone."""
    whole = dist.group.WORLD
    message = error_of(lambda: whole.monitored_barrier(datetime.timedelta(0))) if dist.get_rank() == 0 else ""
    dist.barrier()
    return message


def barriers_of_all_ranks(times: int) -> int:
    for _ in range(times):
        agspeed_distributed.monitored_barrier(timeout=20.0)
    return times


def late_ranks_at_a_barrier(late: list[int], wait_all_ranks: bool) -> tuple[str, float]:
    """Returns each rank's error if some ranks come after the timeout. The group still works afterwards."""
    dist.barrier()
    if dist.get_rank() in late:
        time.sleep(3.0)
    barrier = agspeed_distributed.monitored_barrier
    message = error_of(lambda: barrier(timeout=datetime.timedelta(seconds=1), wait_all_ranks=wait_all_ranks))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    barrier(timeout=20.0)
    return message, float(tensor)


def barriers_of_subgroups() -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([0, 1]), dist.new_group(list(range(size)))]
    if rank < 2:
        agspeed_distributed.monitored_barrier(groups[0], timeout=20.0)
    dist.barrier()
    if rank == size - 1:
        return ""
    return error_of(lambda: agspeed_distributed.monitored_barrier(groups[1], timeout=1.0))


# --- records and counters ---------------------------------------------------------------------------------------------


def recorded(count: int) -> tuple[dict[str, Any], float]:
    """Returns this rank's record, and the seconds in which all of its operations began and ended."""
    rank, size, begun = dist.get_rank(), dist.get_world_size(), time.monotonic()
    dist.all_reduce(torch.ones(count, dtype=torch.bfloat16))
    whole = torch.empty(size * 4, dtype=torch.int64)
    dist.all_gather_into_tensor(whole, torch.ones(4, dtype=torch.int64))
    if rank == 0:
        dist.send(torch.ones(7), dst=1, tag=3)
    if rank == 1:
        dist.recv(torch.ones(7), src=0, tag=3)
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.broadcast(torch.ones(5), src=0, group=pair)
    return agspeed_distributed.flight_record(), time.monotonic() - begun


def recorded_often(times: int) -> dict[str, Any]:
    tensor = torch.ones(1)
    for _ in range(times):
        dist.all_reduce(tensor)
    return agspeed_distributed.flight_record()


def recorded_failure() -> dict[str, Any]:
    """Rank 0 calls with another size. Returns every rank's record of it."""
    dist.all_reduce(torch.ones(4))
    error_of(lambda: dist.all_reduce(torch.ones(8 if dist.get_rank() == 0 else 9)))
    return agspeed_distributed.flight_record()


def received_nothing() -> None:
    """Starts a receive that gets no message and is not waited for."""
    dist.all_reduce(torch.ones(4))
    dist.irecv(torch.ones(8), src=1 - dist.get_rank())


def counted(count: int) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Returns counters before and after one all_reduce of `count` elements, and the text for Prometheus."""
    before = agspeed_distributed.counters()
    dist.barrier()  # no rank sends before all have read their counters
    dist.all_reduce(torch.ones(count))
    dist.barrier()
    return before, agspeed_distributed.counters(), agspeed_distributed.prometheus()


def traced(folder: Path, count: int) -> dict[str, Any]:
    """Returns the timeline of five operations and a pause."""
    dist.all_reduce(torch.ones(3))
    path = folder / f"trace-{dist.get_rank()}.json"
    with agspeed_distributed.trace(path, interval_s=0.002):
        for _ in range(5):
            dist.all_reduce(torch.ones(count))
        time.sleep(0.05)
    return json.loads(path.read_text())


def without_our_backend() -> tuple[str, str]:
    agspeed_distributed.monitored_barrier(timeout=10.0)  # falls back to Gloo's own
    return error_of(agspeed_distributed.counters), error_of(agspeed_distributed.flight_record)
