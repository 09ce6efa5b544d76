# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in cases of kind "bytes" (comm/rank.py): steps of DistributedDataParallel, with a codec or
without one.

A step either exchanges gradients of files, without compute, or is a whole step of a workload.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workloads
from benchmarks.comm import programs, training
from benchmarks.workloads.base import called_through

DENSE = ""
_CODECS: dict[str, dict[str, Any]] = {"int8": {}, "topk": {"density": 0.01}}
"""Functions of `agspeed.distributed.hooks`, and their options."""
_sessions: dict[str, "_Session"] = {}


class _Session:
    """A model, its steps, and the mean of all ranks' gradients in its first step."""

    def __init__(self, model: nn.Module, step: Callable[[], Any], mean: Callable[[], Tensor]) -> None:
        """`mean` is called once after the first step."""
        self.model, self.step, self.mean = model, step, mean

    def gradients(self) -> Tensor:
        return torch.cat([each.grad.flatten() for each in self.model.parameters() if each.grad is not None])


def open_gradients(codec: str, layers: Sequence[Sequence[int]], files: Sequence[str], bucket_mb: float) -> None:
    """Opens a session that exchanges gradients of files (`contents.Contents`). `bucket_mb` 0 means DDP's default."""
    own = read(files[dist.get_rank()])
    memory = training.Memory(max(map(max, layers)))
    model = training.sleepers([(sizes, 1 / len(layers)) for sizes in layers], training.Pace(0.0), memory)
    parts = iter(own.split([num_bytes // 4 for sizes in layers for num_bytes in sizes]))
    for layer, sizes in zip(model, layers, strict=True):
        layer.gradients = list(itertools.islice(parts, len(sizes)))
    wrapped = _wrapped(model, codec, bucket_mb)
    start = torch.zeros(1, requires_grad=True)

    def step() -> None:
        wrapped.zero_grad(set_to_none=True)
        wrapped(start).sum().backward()

    _sessions[codec] = _Session(model, step, lambda: _mean(map(read, files), len(files)))


def open_training(codec: str, workload: str, bucket_mb: float) -> None:
    """Opens a session that trains a workload. Each rank has batches of its own."""
    with called_through(lambda model: _wrapped(model, codec, bucket_mb)):
        made = workloads.load(workload).build()
    batches = itertools.islice(itertools.cycle(made.batches), dist.get_rank(), None, dist.get_world_size())
    [model] = made.modules.values()
    own: dict[str, Tensor] = {}
    hooks = [
        parameter.register_hook(lambda gradient, name=name: own.update({name: gradient.clone()}))
        for name, parameter in model.named_parameters()
    ]

    def mean() -> Tensor:
        for hook in hooks:
            hook.remove()
        flat = torch.cat([own[name].flatten() for name, _ in model.named_parameters() if name in own]).double()
        rows = flat.new_empty(dist.get_world_size() * len(flat))
        dist.all_gather_into_tensor(rows, flat)
        return _mean(rows.view(-1, len(flat)), dist.get_world_size())

    _sessions[codec] = _Session(model, lambda: made.step(next(batches)), mean)


def first_step(codec: str) -> dict[str, Any]:
    """Runs the first step. Returns the bytes of its gradients, and their relative error: norm over norm."""
    session = _sessions[codec]
    session.step()
    found, exact = session.gradients(), session.mean()
    return {"bytes": found.nbytes, "error": float((found - exact).norm() / exact.norm())}


def digest(codec: str) -> str:
    """Returns a hash of the bits of the last step's gradients."""
    return hashlib.sha256(_sessions[codec].gradients().numpy().tobytes()).hexdigest()


def steps(codec: str, count: int) -> dict[str, Any]:
    """See `programs.timed`."""
    return programs.timed(count, lambda _: _sessions[codec].step())


def close() -> None:
    """Drops all sessions before the next workload begins."""
    _sessions.clear()


def read(path: str) -> Tensor:
    """Maps a file of `contents.write`. The file does not change with the values."""
    return torch.from_numpy(np.memmap(path, np.float32, "c"))


def _wrapped(model: nn.Module, codec: str, bucket_mb: float) -> DistributedDataParallel:
    from agspeed.distributed import hooks

    options = {"bucket_cap_mb": bucket_mb} if bucket_mb else {}
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
    if codec != DENSE:
        getattr(hooks, codec)(wrapped, **_CODECS[codec])
    return wrapped


def _mean(rows: Iterable[Tensor], count: int) -> Tensor:
    return sum((row.double() for row in rows), torch.zeros(1, dtype=torch.float64)) / count
