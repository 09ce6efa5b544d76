# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of local steps, on every rank of a default group."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from agspeed import distributed
from agspeed.distributed import groups
from agspeed.distributed.diloco import LocalSteps
from tests.python.distributed import training

Options = dict[str, Any]
_USUAL: Options = {"every": 2, "warmup": 0}


def model(*, with_statistics: bool = False) -> nn.Sequential:
    """Returns a model that differs between ranks, with pieces that are sent as bytes."""
    torch.manual_seed(dist.get_rank())
    layers = [nn.Linear(training.WIDTH, 256), nn.Tanh(), nn.Linear(256, training.CLASSES)]
    return nn.Sequential(*layers, *([nn.BatchNorm1d(training.CLASSES)] if with_statistics else []))


def _step(own: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, micro: int = 1) -> None:
    optimizer.zero_grad()
    for part in batch.chunk(micro):
        (own(part).square().mean() / micro).backward()
    optimizer.step()


def warm_weights(steps: int) -> list[torch.Tensor]:
    own = training.model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    distributed.local_steps(own, optimizer, every=5, warmup=steps)
    training.train(own, optimizer, steps)
    return training.weights(own)


def averaged_each_step(steps: int) -> list[torch.Tensor]:
    """Plain averages of parameters after each step of SGD, which are averages of gradients."""
    own = training.model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    distributed.local_steps(own, optimizer, every=1, warmup=0, outer_lr=1.0, outer_momentum=0.0, compression="none")
    training.train(own, optimizer, steps)
    return training.weights(own)


def histories(options: Options, steps: int, *, with_statistics: bool = False) -> list[dict[str, Any]]:
    """Returns after each step: the parameters, the outer ones, the buffers, and the number of synchronizations."""
    own = model(with_statistics=with_statistics)
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2)
    local = distributed.local_steps(own, optimizer, **options)
    found = []
    for batch in training.batches(steps):
        _step(own, optimizer, batch, micro=2)
        outer = {name: each["outer"] for name, each in local.state_dict()["parameters"].items()}
        buffers = [each.clone() for each in own.buffers()]
        found.append(
            {"local": training.weights(own), "outer": outer, "buffers": buffers, "count": local.num_synchronizations}
        )
    local.synchronize()
    first = training.weights(own)
    local.synchronize()
    found.append({"local": training.weights(own), "again": first})
    return found


def _trained(local: LocalSteps, own: nn.Module, optimizer: torch.optim.Optimizer, begin: int, end: int) -> None:
    for batch in list(training.batches(end))[begin:]:
        _step(own, optimizer, batch)


def resumed(options: Options, middle: int, steps: int, *, from_first: bool = False) -> tuple[Any, Any]:
    """Returns the weights of a training without and with a checkpoint in its middle; with the first rank's for all."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
        own = model()
        optimizer = torch.optim.Adam(own.parameters(), lr=1e-2)
        return own, optimizer, distributed.local_steps(own, optimizer, **options)

    own, optimizer, local = made()
    _trained(local, own, optimizer, 0, middle)
    if from_first:
        local.synchronize()
    saved = copy.deepcopy([own.state_dict(), optimizer.state_dict(), local.state_dict()])
    if from_first:
        dist.broadcast_object_list(saved, 0)
    again, other, loaded = made()
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    loaded.load_state_dict(saved[2])
    _trained(local, own, optimizer, middle, steps)
    _trained(loaded, again, other, middle, steps)
    return training.weights(own), training.weights(again)


# --- errors -----------------------------------------------------------------------------------------------------------


def message_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def refused_models() -> dict[str, str]:
    own = training.model()
    sgd = torch.optim.SGD(own.parameters(), lr=0.1)
    sharded = training.model()
    training.fully_shard(sharded)

    def called(a_model: Any, optimizer: Any = sgd, **options: Any) -> Callable[[], object]:
        return lambda: distributed.local_steps(a_model, optimizer, **{**_USUAL, **options})

    def elastic() -> object:
        groups.membership_changes = True
        try:
            return called(own)()
        finally:
            groups.membership_changes = False

    calls = {
        "ddp": called(DistributedDataParallel(own)),
        "fsdp": called(sharded, torch.optim.SGD(sharded.parameters(), lr=0.1)),
        "no model": called(sgd),
        "no optimizer": called(own, own),
        "others": called(own[0]),
        "elastic": elastic,
        "every": called(own, every=0),
        "fragments": called(own, fragments=3),
        "compression": called(own, compression="topk"),
        "twice": lambda: (called(own)(), called(own)()),
    }
    return {name: message_of(call) for name, call in calls.items()}


def refused_steps() -> dict[str, str]:
    """Returns the errors of steps that are not local."""
    found = {}

    def prepared() -> tuple[nn.Module, torch.optim.Optimizer]:
        own = training.model()
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        distributed.local_steps(own, optimizer, **_USUAL)
        return own, optimizer

    batch = next(training.batches(1))
    own, _ = prepared()
    wrapped = DistributedDataParallel(own)
    found["reduced"] = message_of(lambda: wrapped(batch))

    own, optimizer = prepared()
    wrapped = DistributedDataParallel(own)
    with wrapped.no_sync():
        found["no_sync"] = message_of(lambda: _step(wrapped, optimizer, batch))

    own, optimizer = prepared()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(own(batch).square().mean()).backward()
    found["scaler"] = message_of(lambda: scaler.step(optimizer))

    own, optimizer = prepared()
    found["closure"] = message_of(lambda: optimizer.step(lambda: own(batch).mean()))

    own, optimizer = prepared()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    found["parameters"] = message_of(lambda: _step(own, optimizer, batch))
    return found


def differing(options: list[Options]) -> str:
    """Passes other options at each rank."""
    own = training.model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    return message_of(lambda: distributed.local_steps(own, optimizer, **options[dist.get_rank()]))


def with_nan() -> tuple[str, bool]:
    """One rank gets NaN before a synchronization. Returns the error, and whether the outer parameters stayed."""
    own = model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    local = distributed.local_steps(own, optimizer, **_USUAL)
    before = {name: each["outer"] for name, each in local.state_dict()["parameters"].items()}
    first, second = training.batches(2)
    _step(own, optimizer, first)
    if dist.get_rank() == 1:
        second = second * torch.nan
    error = message_of(lambda: _step(own, optimizer, second))
    after = local.state_dict()["parameters"]
    return error, all(torch.equal(each, after[name]["outer"]) for name, each in before.items())


def wrong_states() -> dict[str, str]:
    own = model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    local = distributed.local_steps(own, optimizer, **_USUAL)
    state = local.state_dict()
    rank = dist.get_rank()
    other = {**state, "parameters": {**state["parameters"], "0.bias": {"outer": torch.zeros(3)}}}
    states = {
        "foreign": {"model": 1},
        "shape": other,
        "steps": {**state, "num_steps": rank},
        "one rank": other if rank == 1 else state,
    }
    return {name: message_of(lambda each=each: local.load_state_dict(each)) for name, each in states.items()}
