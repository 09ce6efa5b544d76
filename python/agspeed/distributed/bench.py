# SPDX-License-Identifier: Apache-2.0
"""Times collectives, sizes and algorithms, by the conventions of nccl-tests.

Every rank of the default group runs `measure`, and all ranks get the same rows. A row's size is the size of the whole
buffer, e.g. all_gather's output or reduce_scatter's input. Let t be the time of one operation on the slowest rank. The
algorithm bandwidth is size / t. The bus bandwidth is the algorithm bandwidth times the collective's bus factor (see
`COLLECTIVES`). Each rank's link carries at least the bus bandwidth with any algorithm, so it can be compared with the
speed of the link.

To add a collective, add one row to `COLLECTIVES` and the function that prepares it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import distributed

from agspeed import native
from agspeed.distributed import groups, metrics

__all__ = ["AUTO", "COLLECTIVES", "RailUse", "Request", "Row", "algorithms", "measure", "time_in_turns"]

AUTO = "auto"
_FIRST_RUNS = 2
_ROUNDS = 3
_MAX_PER_ROUND = 500


@dataclass(frozen=True)
class Request:
    """Says what to time. `algorithms`: names, or "auto" for the plan's choice. A collective skips unknown names."""

    collectives: Sequence[str]
    sizes: Sequence[int]
    algorithms: Sequence[str] = (AUTO,)
    dtype: torch.dtype = torch.float32
    seconds: float = 0.3  # per row, about
    against: str = ""
    """Another backend to compare with: in each row, its rounds alternate with ours. "": none."""


@dataclass(frozen=True)
class RailUse:
    """Traffic that this rank sent over one interface while a row was timed. `share`: its part of all traffic sent."""

    interface: str
    address: str
    share: float
    gbytes_per_s: float


@dataclass(frozen=True)
class Row:
    """The result for one collective, algorithm and size.

    `rails` is empty if the backend is another one, or if no data left the host. `against_microseconds` is the time of
    the other backend, if the request named one.
    """

    collective: str
    algorithm: str
    bytes: int
    microseconds: float
    algorithm_gbytes_per_s: float
    bus_gbytes_per_s: float
    is_correct: bool
    rails: list[RailUse] = field(default_factory=list)
    against_microseconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Prepared(NamedTuple):
    """One collective with its buffers: `fill` sets the input, the timer calls `run`, and `is_correct` checks the
    output after a `fill` and a `run`."""

    fill: Callable[[], None]
    run: Callable[[], Any]
    is_correct: Callable[[], bool]


Group = distributed.ProcessGroup | None
"""None: the default group."""


class _Collective(NamedTuple):
    bus_factor: Callable[[int], float]  # takes the number of ranks
    prepare: Callable[[int, torch.dtype, Group], _Prepared]
    """Takes the number of elements in one rank's part. The whole buffer has one part for each rank."""


def algorithms(collective: str) -> list[str]:
    """The algorithms of this backend for a collective, in the order of their table."""
    module = native.load()
    return [] if module is None else [name for owner, name in module.collective_algorithms() if owner == collective]


def measure(request: Request) -> Iterator[Row]:
    """Yields one row after another. Every rank must make the same request and consume all rows."""
    ours = groups.find()
    other: Any = distributed.new_group(backend=request.against) if request.against else None
    for name in request.collectives:
        known = algorithms(name) if ours is not None else []
        for algorithm in request.algorithms:
            if algorithm != AUTO and algorithm not in known:
                continue
            if ours is not None:
                ours.set_algorithm(name, "" if algorithm == AUTO else algorithm)
            for wanted in request.sizes:
                yield _row(request, name, algorithm, wanted, other)
        if ours is not None:
            ours.set_algorithm(name, "")


def _row(request: Request, name: str, algorithm: str, wanted: int, other: Group) -> Row:
    size = distributed.get_world_size()
    element = torch.empty(0, dtype=request.dtype).element_size()
    part = max(wanted // (element * size), 1)
    groups_timed = [None, other] if other is not None else [None]
    prepared = [COLLECTIVES[name].prepare(part, request.dtype, group) for group in groups_timed]
    is_correct = _agree(min(_is_correct(each) for each in prepared), distributed.ReduceOp.MIN) == 1
    before = _rails()
    (seconds, num_runs), *others = time_in_turns([each.run for each in prepared], request.seconds)
    rails = _use(before, _rails(), num_runs * seconds)
    num_bytes = part * size * element
    speed = num_bytes / seconds / 1e9
    bus_speed = speed * COLLECTIVES[name].bus_factor(size)
    against = 1e6 * others[0][0] if others else None
    return Row(name, algorithm, num_bytes, 1e6 * seconds, speed, bus_speed, is_correct, rails, against)


def _rails() -> list[dict[str, Any]]:
    return list(metrics.counters()["rails"]) if groups.find() is not None else []


def _use(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], seconds: float) -> list[RailUse]:
    """One row for each interface; it adds up all connections of the interface."""
    sent: dict[tuple[str, str], int] = {}
    for then, now in zip(before, after, strict=True):
        place = (now["interface"], now["address"])
        sent[place] = sent.get(place, 0) + now["bytes_sent"] - then["bytes_sent"]
    total = sum(sent.values())
    return [RailUse(*place, num / total, num / seconds / 1e9) for place, num in sent.items()] if total else []


def _is_correct(prepared: _Prepared) -> float:
    prepared.fill()
    prepared.run()
    return float(prepared.is_correct())


def time_in_turns(runs: Sequence[Callable[[], Any]], budget: float) -> list[tuple[float, int]]:
    """Returns (seconds per call, number of calls) for each of `runs`, in about `budget` seconds for each.

    The seconds are the median of several rounds; each round counts the time of the slowest rank. Rounds of the
    different `runs` alternate.
    """
    counts = []
    for run in runs:
        run()
        distributed.barrier()
        once = _agree(_seconds(run, _FIRST_RUNS), distributed.ReduceOp.MAX)
        counts.append(min(max(int(budget / _ROUNDS / once), 1), _MAX_PER_ROUND))
    rounds: list[list[float]] = [[] for _ in runs]
    for _ in range(_ROUNDS):
        for run, count, found in zip(runs, counts, rounds, strict=True):
            distributed.barrier()
            found.append(_agree(_seconds(run, count), distributed.ReduceOp.MAX))
    return [
        (statistics.median(found), 1 + _FIRST_RUNS + _ROUNDS * count)
        for found, count in zip(rounds, counts, strict=True)
    ]


def _seconds(run: Callable[[], Any], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count


def _agree(value: float, op: Any) -> float:
    """The minimum or maximum of all ranks' values."""
    tensor = torch.tensor([value], dtype=torch.float64)
    distributed.all_reduce(tensor, op=op)
    return float(tensor)


# ----------------------------------------------------------------------------------------------------------------------
# The collectives. Every element of rank r's input is r + 1. Each dtype can hold that for the ranks of a benchmark.


def _filled(*tensors: torch.Tensor) -> Callable[[], None]:
    def fill() -> None:
        for tensor in tensors:
            tensor.fill_(distributed.get_rank() + 1)

    return fill


def _all_are(tensor: torch.Tensor, expected: float) -> bool:
    return bool((tensor == torch.tensor(expected).to(tensor.dtype)).all())


def _ranks_in_order(tensor: torch.Tensor) -> bool:
    parts = tensor.chunk(distributed.get_world_size())
    return all(_all_are(part, rank + 1) for rank, part in enumerate(parts))


def _sum_of_ranks() -> float:
    size = distributed.get_world_size()
    return size * (size + 1) / 2


def _all_reduce(part: int, dtype: torch.dtype, group: Group) -> _Prepared:
    data = torch.zeros(part * distributed.get_world_size(), dtype=dtype)

    def is_correct() -> bool:
        found = _all_are(data, _sum_of_ranks())
        data.zero_()  # so that repeated sums stay in range
        return found

    return _Prepared(_filled(data), lambda: distributed.all_reduce(data, group=group), is_correct)


def _broadcast(part: int, dtype: torch.dtype, group: Group) -> _Prepared:
    data = torch.zeros(part * distributed.get_world_size(), dtype=dtype)
    return _Prepared(_filled(data), lambda: distributed.broadcast(data, src=0, group=group), lambda: _all_are(data, 1))


def _reduce(part: int, dtype: torch.dtype, group: Group) -> _Prepared:
    data = torch.zeros(part * distributed.get_world_size(), dtype=dtype)

    def is_correct() -> bool:
        found = distributed.get_rank() != 0 or _all_are(data, _sum_of_ranks())
        data.zero_()
        return found

    return _Prepared(_filled(data), lambda: distributed.reduce(data, dst=0, group=group), is_correct)


def _all_gather(part: int, dtype: torch.dtype, group: Group) -> _Prepared:
    own, whole = torch.zeros(part, dtype=dtype), torch.zeros(part * distributed.get_world_size(), dtype=dtype)
    run = lambda: distributed.all_gather_into_tensor(whole, own, group=group)  # noqa: E731
    return _Prepared(_filled(own), run, lambda: _ranks_in_order(whole))


def _reduce_scatter(part: int, dtype: torch.dtype, group: Group) -> _Prepared:
    own, whole = torch.zeros(part, dtype=dtype), torch.zeros(part * distributed.get_world_size(), dtype=dtype)
    run = lambda: distributed.reduce_scatter_tensor(own, whole, group=group)  # noqa: E731
    return _Prepared(_filled(whole), run, lambda: _all_are(own, _sum_of_ranks()))


def _all_to_all(part: int, dtype: torch.dtype, group: Group) -> _Prepared:
    sent, received = (torch.zeros(part * distributed.get_world_size(), dtype=dtype) for _ in range(2))
    run = lambda: distributed.all_to_all_single(received, sent, group=group)  # noqa: E731
    return _Prepared(_filled(sent), run, lambda: _ranks_in_order(received))


def _gather(part: int, dtype: torch.dtype, group: Group) -> _Prepared:
    own, whole = torch.zeros(part, dtype=dtype), torch.zeros(part * distributed.get_world_size(), dtype=dtype)
    is_root = distributed.get_rank() == 0
    outputs = list(whole.chunk(distributed.get_world_size())) if is_root else None
    run = lambda: distributed.gather(own, outputs, dst=0, group=group)  # noqa: E731
    return _Prepared(_filled(own), run, lambda: not is_root or _ranks_in_order(whole))


def _scatter(part: int, dtype: torch.dtype, group: Group) -> _Prepared:
    own, whole = torch.zeros(part, dtype=dtype), torch.zeros(part * distributed.get_world_size(), dtype=dtype)
    inputs = list(whole.chunk(distributed.get_world_size())) if distributed.get_rank() == 0 else None
    run = lambda: distributed.scatter(own, inputs, src=0, group=group)  # noqa: E731
    return _Prepared(_filled(whole), run, lambda: _all_are(own, 1))


def _others(size: int) -> float:
    return (size - 1) / size


COLLECTIVES: dict[str, _Collective] = {
    "all_reduce": _Collective(lambda size: 2 * _others(size), _all_reduce),
    "all_gather": _Collective(_others, _all_gather),
    "reduce_scatter": _Collective(_others, _reduce_scatter),
    "all_to_all": _Collective(_others, _all_to_all),
    "broadcast": _Collective(lambda _: 1.0, _broadcast),
    "reduce": _Collective(lambda _: 1.0, _reduce),
    "gather": _Collective(_others, _gather),
    "scatter": _Collective(_others, _scatter),
}
