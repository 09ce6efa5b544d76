# SPDX-License-Identifier: Apache-2.0
"""Times collectives, sizes and algorithms, by the conventions of nccl-tests.

Every rank of the default group runs `measure`; all of them get the same rows. The size of a row is that of the whole
buffer: of all_gather's output and reduce_scatter's input, for instance. With t the time of one operation, of the rank
that took longest, the algorithm bandwidth is size / t, and the bus bandwidth is that times the factor below: what each
rank's link carries at least, whatever the algorithm, so it can be held against the speed of the link.

To add a collective: one row in `COLLECTIVES` and the function that prepares it.
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

__all__ = ["AUTO", "COLLECTIVES", "RailUse", "Request", "Row", "algorithms", "measure"]

AUTO = "auto"
_FIRST_RUNS = 2
_ROUNDS = 3
_MAX_PER_ROUND = 500


@dataclass(frozen=True)
class Request:
    """What to time. `algorithms`: names, or "auto" for what the plan takes; a collective skips those it lacks."""

    collectives: Sequence[str]
    sizes: Sequence[int]
    algorithms: Sequence[str] = (AUTO,)
    dtype: torch.dtype = torch.float32
    seconds: float = 0.3  # per row, about
    against: str = ""
    """Another backend, each row's rounds of which alternate with ours."""


@dataclass(frozen=True)
class RailUse:
    """What this rank sent over one of its interfaces while a row was timed. `share`: of what went over all of them."""

    interface: str
    address: str
    share: float
    gbytes_per_s: float


@dataclass(frozen=True)
class Row:
    """`rails`: none where the backend is another one, or nothing left the host. `against_microseconds`: of the other
    backend, where one was asked for."""

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
    """`fill` sets the input, `run` is what is timed, `is_correct` looks at the output of a run after a fill."""

    fill: Callable[[], None]
    run: Callable[[], Any]
    is_correct: Callable[[], bool]


Group = distributed.ProcessGroup | None
"""None: the default group."""


class _Collective(NamedTuple):
    bus_factor: Callable[[int], float]  # of the number of ranks
    prepare: Callable[[int, torch.dtype, Group], _Prepared]
    """Of elements per rank's part; as many parts as ranks are the whole."""


def algorithms(collective: str) -> list[str]:
    """The algorithms of ours for a collective, in the order of their table."""
    module = native.load()
    return [] if module is None else [name for owner, name in module.collective_algorithms() if owner == collective]


def measure(request: Request) -> Iterator[Row]:
    """One row after another. Every rank must ask for the same and take all rows."""
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
    (seconds, num_runs), *others = _time([each.run for each in prepared], request.seconds)
    rails = _use(before, _rails(), num_runs * seconds)
    num_bytes = part * size * element
    speed = num_bytes / seconds / 1e9
    bus_speed = speed * COLLECTIVES[name].bus_factor(size)
    against = 1e6 * others[0][0] if others else None
    return Row(name, algorithm, num_bytes, 1e6 * seconds, speed, bus_speed, is_correct, rails, against)


def _rails() -> list[dict[str, Any]]:
    return list(metrics.counters()["rails"]) if groups.find() is not None else []


def _use(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], seconds: float) -> list[RailUse]:
    """A row per interface, however many connections it has."""
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


def _time(runs: Sequence[Callable[[], Any]], budget: float) -> list[tuple[float, int]]:
    """For each of `runs`: seconds per call, the median of rounds, each as long as the rank that took longest, and how
    many calls it took to find out. Rounds of one alternate with those of the others.
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
    """The least or greatest of all ranks' values."""
    tensor = torch.tensor([value], dtype=torch.float64)
    distributed.all_reduce(tensor, op=op)
    return float(tensor)


# ----------------------------------------------------------------------------------------------------------------------
# The collectives. Rank r's data is r + 1 everywhere, which every type holds for the ranks of a benchmark.


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
        data.zero_()  # stays in range however often it is summed
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
