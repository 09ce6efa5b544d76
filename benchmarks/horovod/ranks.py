# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in cases of kind "horovod" (comm/rank.py): steps with sleeping layers, named operations.

Every rank of a side runs each function at the same time. Results are compared bit by bit, as in comm/programs.py.
"""

import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.comm import programs, training

DDP, HOROVOD, ALONE = "ddp", "horovod", "alone"
_memories: dict[int, training.Memory] = {}
_sessions: dict[str, "Session"] = {}
_operations: dict[str, Callable[[], Any]] = {}
_tensors: list[Tensor] = []


class Unmoved(torch.optim.Optimizer):
    """An optimizer whose step does nothing. An update is compute, and compute is replayed by sleeping."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        return None


class Session:
    """A training loop around sleeping layers, as users write it: with DDP, with Horovod's optimizer, or without
    either."""

    def __init__(self, way: str, layers: Sequence[tuple[Sequence[int], float]], bucket_mb: float, forward: float):
        """`bucket_mb` is the cap of DistributedDataParallel; 0 means its default."""
        largest = max(max(sizes) for sizes, _ in layers)
        if largest not in _memories:
            _memories[largest] = training.Memory(largest)
        memory = _memories[largest]
        self.pace = training.Pace(forward)
        self.model: nn.Module = training.sleepers(layers, self.pace, memory)
        self.optimizer: Any = Unmoved(self.model.parameters())
        self._wrapped = self.model
        if way == DDP:
            options = {"bucket_cap_mb": bucket_mb} if bucket_mb else {}
            self._wrapped = DistributedDataParallel(
                self.model, gradient_as_bucket_view=True, init_sync=False, **options
            )
        if way == HOROVOD:
            self.optimizer = horovod().DistributedOptimizer(
                self.optimizer, named_parameters=self.model.named_parameters()
            )
        self._input = torch.zeros(1, requires_grad=True)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self._wrapped(self._input).sum().backward()
        self.optimizer.step()


def horovod() -> Any:
    """Returns hvd, initialised."""
    import agspeed.horovod.torch as hvd

    hvd.init()
    return hvd


def open_session(way: str, layers: Any, bucket_mb: float, forward: float) -> None:
    """Opens the session that `steps` of that way run. Two steps without compute settle buckets and names."""
    _sessions.pop(way, None)
    session = _sessions[way] = Session(way, layers, bucket_mb, forward)
    for _ in range(2):
        session.step()
    if way != ALONE:
        training.expect_means(session.model)


def steps(way: str, compute_seconds: float, count: int) -> dict[str, Any]:
    """See `programs.timed`."""
    session = _sessions[way]
    session.pace.step_seconds = compute_seconds
    noted = programs.timed(count, lambda _: session.step())
    if way == ALONE:
        session.optimizer.zero_grad()  # frees memory that the other ways need
    return noted


def check(way: str) -> None:
    """Raises AssertionError unless the last step left the means of all ranks' gradients."""
    training.expect_means(_sessions[way].model)


def open_operations(num_tensors: int, num_bytes: int) -> None:
    """Prepares what `operations` runs: averages in place of that many tensors, by each way."""
    hvd = horovod()
    pattern = programs.pattern(dist.get_rank())
    _tensors[:] = [torch.empty(num_bytes // 4) for _ in range(num_tensors)]
    for tensor in _tensors:
        programs.fill(tensor, pattern)
    names = [f"tensor.{num_tensors}.{at}" for at in range(num_tensors)]

    def grouped() -> None:
        hvd.synchronize(hvd.grouped_allreduce_async_(_tensors, name=f"group.{num_tensors}"))

    def named() -> None:
        handles = [hvd.allreduce_async_(tensor, name=name) for tensor, name in zip(_tensors, names, strict=True)]
        for handle in handles:
            hvd.synchronize(handle)

    each = _optimizer(hvd, f"each.{num_tensors}", None)
    together = _optimizer(hvd, f"together.{num_tensors}", 1)
    ways: dict[str, Callable[[], Any]] = {"grouped": grouped, "named": named}
    _operations.clear()
    _operations.update(ways | {"optimizer": each.synchronize, "optimizer-grouped": together.synchronize})
    for _ in range(3):
        for operation in _operations.values():
            operation()


def operations(way: str, count: int) -> dict[str, Any]:
    """See `programs.timed`."""
    noted = programs.timed(count, lambda _: _operations[way]())
    mean = programs.total_pattern(dist.get_world_size()) / dist.get_world_size()
    for tensor in _tensors:
        programs.expect(tensor, mean)
    return noted


def steps_of(count: int) -> dict[str, Any]:
    """Runs steps of Horovod's way without compute. Returns the resident bytes afterwards and the group's statistics."""
    for _ in range(count):
        _sessions[HOROVOD].step()
    from agspeed.horovod.torch import job

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {"resident_bytes": pages * resource.getpagesize(), **job.current().group.stats()}


def _optimizer(hvd: Any, name: str, groups: int | None) -> Any:
    """Returns an optimizer whose gradients are `_tensors`. No backward makes them: synchronize() starts them all."""
    parameters = [nn.Parameter(torch.zeros_like(tensor)) for tensor in _tensors]
    for parameter, tensor in zip(parameters, _tensors, strict=True):
        parameter.grad = tensor
    named = [(f"{name}.{at}", parameter) for at, parameter in enumerate(parameters)]
    return hvd.DistributedOptimizer(Unmoved(parameters), named_parameters=named, groups=groups)
