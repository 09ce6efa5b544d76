# SPDX-License-Identifier: Apache-2.0
"""What the ranks do in part "real": workloads in DistributedDataParallel, compiled and tuned in the ways compared."""

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workloads
from benchmarks.comm import programs
from benchmarks.workloads.base import Batch, Training, called_through

_WARM_UP = 8  # steps; they settle DDP's buckets and torch.compile
_caches: list[tempfile.TemporaryDirectory[str]] = []
_ways: dict[str, tuple[Training, Iterator[Batch]]] = {}


def open_way(way: str, workload: str, seconds: float) -> dict[str, Any]:
    """Gets ready to train in that way; agspeed tunes for `seconds` at most. Returns what it settled on."""
    torch._dynamo.reset()
    models: list[nn.Module] = []

    def wrap(model: nn.Module) -> Any:
        models.append(_optimized(model) if way == "agspeed" else model)
        wrapped = DistributedDataParallel(model)
        return torch.compile(wrapped) if way.startswith("compile") else wrapped

    whole = dynamo_config.patch(optimize_ddp=False)
    with called_through(wrap), whole if way == "compile-whole" else contextlib.nullcontext():
        training = workloads.load(workload).build()
        _ways[way] = training, itertools.cycle(training.batches)
        for _ in range(_WARM_UP):
            _step(way)
    if way != "agspeed":
        return {"chosen": None, "reason": None}
    programs.tune(models[0], lambda: _step(way), seconds)
    return _chosen(models[0])


def close_ways() -> None:
    """The next workload begins."""
    _ways.clear()


def steps(way: str, count: int) -> dict[str, Any]:
    """See `programs.timed`."""
    return programs.timed(count, lambda _: _step(way))


def _step(way: str) -> None:
    training, batches = _ways[way]
    training.step(next(batches))


def _optimized(model: nn.Module) -> nn.Module:
    import agspeed

    cache = tempfile.TemporaryDirectory(prefix="agspeed-bench-")
    _caches.append(cache)
    return agspeed.optimize(model, mode="max", cache_dir=cache.name)  # type: ignore[no-any-return]


def _chosen(model: nn.Module) -> dict[str, Any]:
    import agspeed

    report = agspeed.report(model).to_dict()
    return {"chosen": report["decision"]["chosen"], "reason": report["status"]["reason"]}
