# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in part "real": wrapped workloads, compiled and tuned in the ways compared.

The wrapper is "DistributedDataParallel" or "fully_shard". The latter shards each block and then the model, and
torch.compile compiles the blocks one by one.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workloads
from benchmarks.comm import programs
from benchmarks.workloads.base import Batch, Training, called_through

_WRAPPERS = ("DistributedDataParallel", "fully_shard")
_WARM_UP = 8  # steps to settle DDP's buckets and torch.compile
_caches: list[tempfile.TemporaryDirectory[str]] = []
_ways: dict[str, tuple[Training, Iterator[Batch]]] = {}


def open_way(way: str, workload: str, seconds: float, wrapper: str) -> dict[str, Any]:
    """Prepares training in that way; agspeed tunes for `seconds` at most. Returns agspeed's choice and its reason."""
    if wrapper not in _WRAPPERS:
        raise ValueError(f"unknown wrapper {wrapper!r}; known: {', '.join(_WRAPPERS)}")
    torch._dynamo.reset()
    replaced: dict[nn.Parameter, nn.Parameter] = {}

    def wrap(model: nn.Module) -> Any:
        if wrapper != "fully_shard":
            return _in_ddp(model, way)
        replaced.update(_shard(model, way))
        return _optimized(model) if way == "agspeed" else model

    whole = dynamo_config.patch(optimize_ddp=False)
    with called_through(wrap), whole if way == "compile-whole" else contextlib.nullcontext():
        training = workloads.load(workload).build()
        for group in (group for optimizer in training.optimizers for group in optimizer.param_groups):
            group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]
        _ways[way] = training, itertools.cycle(training.batches)
        for _ in range(_WARM_UP):
            _step(way)
    if way != "agspeed":
        return {"chosen": None, "reason": None}
    model = training.modules["model"]
    programs.tune(model, lambda: _step(way), seconds)
    return _chosen(model)


def close_ways() -> None:
    """Drops all ways before the next workload begins."""
    _ways.clear()


def steps(way: str, count: int) -> dict[str, Any]:
    """See `programs.timed`."""
    return programs.timed(count, lambda _: _step(way))


def _step(way: str) -> None:
    training, batches = _ways[way]
    training.step(next(batches))


def _in_ddp(model: nn.Module, way: str) -> Any:
    wrapped = DistributedDataParallel(_optimized(model) if way == "agspeed" else model)
    return torch.compile(wrapped) if way.startswith("compile") else wrapped


def _shard(model: nn.Module, way: str) -> dict[nn.Parameter, nn.Parameter]:
    """Shards the model. Returns each original parameter's sharded one. Requires: the model calls its `blocks`."""
    whole = dict(model.named_parameters())
    for block in model.blocks.children():  # type: ignore[union-attr]
        if way == "compile":
            block.compile()
        fully_shard(block)
    fully_shard(model)
    return {whole[name]: parameter for name, parameter in model.named_parameters()}


def _optimized(model: nn.Module) -> nn.Module:
    import agspeed

    cache = tempfile.TemporaryDirectory(prefix="agspeed-bench-")
    _caches.append(cache)
    return agspeed.optimize(model, mode="max", cache_dir=cache.name)  # type: ignore[no-any-return]


def _chosen(model: nn.Module) -> dict[str, Any]:
    import agspeed

    report = agspeed.report(model).to_dict()
    undecided = ", undecided" if agspeed.status(model) == "tuning" else ""
    return {"chosen": report["decision"]["chosen"] + undecided, "reason": report["status"]["reason"]}
