# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run when the worker asks (rank.py). Each function runs on every rank of a side at the same time.

Values depend on rank and position, and their period differs from the length of any chunk. Their sums are exact, so
every result is compared bit by bit. An all-reduce in place multiplies the values by the number of ranks, a power of
two, each time that it is repeated.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

_PERIOD = 251  # a prime
_SMALLEST = -100  # exponent of the values' unit; leaves room above for repeated sums
_HEADROOM = 200  # by how much repeated sums may raise the exponent
_CHECKED_EVERY = 10  # steps between two checks whether tuning has taken too long
_buffers: dict[tuple[int, int], list[Tensor]] = {}


def warm_up() -> None:
    """Runs a first operation of two sizes. This connects all pairs of ranks, on the path for short messages and for
    long."""
    for num_elements in (1 << 8, 1 << 20):
        dist.all_reduce(torch.zeros(num_elements))


def all_reduce(num_bytes: int, count: int, milestone: int = 0, file: str = "") -> dict[str, Any]:
    """Runs `count` all-reduces back to back. Creates `file` after the first `milestone` of them, unless that is 0.

    Raises AssertionError if a result is wrong.
    """
    buffers = _filled(num_bytes // 4, count)

    def operation(at: int) -> None:
        dist.all_reduce(buffers[at % len(buffers)])
        if at + 1 == milestone:
            Path(file).touch()

    noted = timed(count, operation)
    size = dist.get_world_size()
    for at, buffer in enumerate(buffers):
        repeated = len(range(at, count, len(buffers)))
        expect(buffer, (total_pattern(size).double() * float(size) ** (repeated - 1)).float())
    return noted


def timed(count: int, operation: Callable[[int], Any]) -> dict[str, Any]:
    """Returns this rank's start, the end of each operation here, and the processor seconds of all its threads."""
    dist.barrier()
    ended, cpu, started = [], time.process_time(), time.monotonic()
    for at in range(count):
        operation(at)
        ended.append(time.monotonic())
    return {"started": started, "ended": ended, "cpu_seconds": time.process_time() - cpu}


def tune(model: torch.nn.Module, step: Callable[[], Any], seconds: float) -> int:
    """Trains until the ranks have decided or one of them has used up its time. Returns the number of steps."""
    import agspeed

    begun, is_late, num_steps = time.monotonic(), torch.zeros(1), 0
    while agspeed.status(model) == "tuning" and not is_late:
        for _ in range(_CHECKED_EVERY):
            step()
        num_steps += _CHECKED_EVERY
        is_late.fill_(time.monotonic() - begun > seconds)
        dist.all_reduce(is_late)
    return num_steps


def pattern(rank: int) -> Tensor:
    """One period of a rank's values: small integers times a small power of two."""
    return torch.tensor([(7 * at + 13 * rank) % _PERIOD + 1 for at in range(_PERIOD)]) * 2.0**_SMALLEST


def total_pattern(size: int) -> Tensor:
    return torch.stack([pattern(rank) for rank in range(size)]).sum(0)


def fill(tensor: Tensor, period: Tensor) -> None:
    whole, rest = _periods(tensor)
    whole.copy_(period.expand_as(whole))
    rest.copy_(period[: rest.numel()])


def expect(tensor: Tensor, period: Tensor) -> None:
    whole, rest = _periods(tensor)
    wrong = int((whole != period).sum()) + int((rest != period[: rest.numel()]).sum())
    assert wrong == 0, f"rank {dist.get_rank()}: {wrong} of {tensor.numel()} elements are not the sum of all ranks'"


def _periods(tensor: Tensor) -> tuple[Tensor, Tensor]:
    flat = tensor.view(-1)
    whole = flat.numel() // _PERIOD * _PERIOD
    return flat[:whole].view(-1, _PERIOD), flat[whole:]


def _filled(num_elements: int, count: int) -> list[Tensor]:
    """Returns enough buffers to keep `count` sums in place within float32. Reuses the buffers of the last size."""
    size = dist.get_world_size()
    assert size & (size - 1) == 0, f"{size} ranks: only sums over a power of two are exact at every repetition"
    needed = math.ceil(count * math.log2(size) / _HEADROOM)
    if (key := (num_elements, needed)) not in _buffers:
        _buffers.clear()
        _buffers[key] = [torch.empty(num_elements) for _ in range(needed)]
    for buffer in _buffers[key]:
        fill(buffer, pattern(dist.get_rank()))
    return _buffers[key]
