# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in parts "join" and "layout": a replayed model, wrapped and compiled or tuned in each
way."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn
from torch._dynamo import config as dynamo_config
from torch.nn.parallel import DistributedDataParallel

from benchmarks.comm import programs, replay

_WARM_UP = 8  # steps to settle DDP's buckets, to compile and to load
_ways: dict[str, tuple[nn.Module, Callable[..., Any]]] = {}
_CAPTURE = 3  # steps until a new capture runs
_caches: list[tempfile.TemporaryDirectory[str]] = []
_layers: list[tuple[int, float]] = []


def open_way(way: str, layers: Sequence[tuple[int, float]], bucket_mb: float) -> dict[str, Any]:
    """Prepares training in that way. Returns the number of stages in which gradients leave, None if not agspeed's."""
    if not _ways:
        _layers[:] = [(num_bytes, share) for num_bytes, share in layers]
    replay.set_pace(_layers, 0.0, 0.0)
    torch._dynamo.reset()
    with _settings(way):
        module = replay.Replayed(_layers)
        target = _optimized(module, way) if way.startswith("agspeed-") else module
        wrapped = DistributedDataParallel(target, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb)
        call = torch.compile(wrapped) if way.startswith("compile") else wrapped
        _ways[way] = (wrapped, call)
        for _ in range(_WARM_UP):
            _step(way)
    return {"stages": _stages(module, way) if way.startswith("agspeed-") else None}


def open_tuned(
    way: str,
    layers: Sequence[tuple[int, float]],
    bucket_mb: float,
    seconds: float,
    forward_seconds: float,
    backward_seconds: float,
) -> dict[str, Any]:
    """Tunes the buckets of eager steps at that pace, for `seconds` at most. Returns the choice, and the numbers of
    steps and pairs of blocks that it took.
    """
    import agspeed

    replay.set_pace(layers, forward_seconds, backward_seconds)
    cache = tempfile.TemporaryDirectory(prefix="agspeed-bench-")
    _caches.append(cache)
    model = agspeed.optimize(replay.Replayed(layers), mode="max", backends=["eager"], cache_dir=cache.name)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb)
    _ways[way] = (wrapped, wrapped)
    for _ in range(_WARM_UP):
        _step(way)
    num_steps = _WARM_UP + programs.tune(model, lambda: _step(way), seconds)
    if agspeed.status(model) == "tuning":
        raise TimeoutError(f"tuning had not ended after {num_steps} steps and {seconds:g} s")
    report = agspeed.report(model).to_dict()
    pairs = sum(plan["speedup"]["pairs"] for plan in report["plans"] if plan["speedup"] is not None)
    return {"chosen": report["decision"]["chosen"], "num_steps": num_steps, "num_pairs": pairs}


def steps(way: str, forward_seconds: float, backward_seconds: float, count: int) -> dict[str, Any]:
    """See `programs.timed`."""
    replay.set_pace(_layers, forward_seconds, backward_seconds)
    return programs.timed(count, lambda _: _step(way))


def gradients(way: str) -> list[float]:
    """Returns a sum of each gradient after steps on this rank's batch. The numbers are the same in every way."""
    replay.set_pace(_layers, 0.0, 0.0)
    for _ in range(_CAPTURE):
        _step(way)
    return [float(parameter.grad.double().sum()) for parameter in _ways[way][0].parameters()]


def _step(way: str) -> None:
    wrapped, call = _ways[way]
    wrapped.zero_grad(set_to_none=True)
    x = torch.linspace(-1, 1, replay.WIDTH).reshape(1, -1) * (1 + dist.get_rank())
    call(x).square().sum().backward()


@contextlib.contextmanager
def _settings(way: str) -> Iterator[None]:
    from agspeed.distributed.wrapper import Wrapper

    uncut = mock.patch.object(Wrapper, "stage_bytes", 0)
    whole = dynamo_config.patch(optimize_ddp=False)
    none = contextlib.nullcontext()
    with whole if way == "compile-whole" else none, uncut if way.endswith("-uncut") else none:
        yield


def _optimized(module: nn.Module, way: str) -> Any:
    import agspeed

    candidate = way.removeprefix("agspeed-").removesuffix("-uncut")
    return agspeed.optimize(module, mode="deterministic", backends=[candidate])


def _stages(module: nn.Module, way: str) -> int:
    """Returns the largest number of stages. Raises RuntimeError if agspeed did not compile."""
    import agspeed

    report = agspeed.report(module).to_dict()
    stages = list((report["group"] or {"stages": {}})["stages"].values())
    if report["status"]["state"] != "tuned" or None in stages:
        raise RuntimeError(f"{way}: {report['status']['reason']}; {report['plans']}")
    return max(stages)
