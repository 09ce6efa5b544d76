# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of states that several objects share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import agspeed.horovod.torch as hvd
from tests.python.distributed import training
from tests.python.horovod.programs import job, message_of


def _made() -> tuple[nn.Module, torch.optim.Optimizer]:
    module = training.model()
    return module, torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.9)


def _step(module: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    module(next(training.batches(1))).square().mean().backward()
    optimizer.step()


# --- calls that replace groups and state ------------------------------------------------------------------------------


def _broadcast(_module: nn.Module, _inner: Any, optimizer: Any) -> None:
    hvd.broadcast_optimizer_state(optimizer, 0)


def _broadcast_inner(_module: nn.Module, inner: Any, _optimizer: Any) -> None:
    hvd.broadcast_optimizer_state(inner, 0)


def _load(_module: nn.Module, _inner: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def _load_inner(_module: nn.Module, inner: Any, _optimizer: Any) -> None:
    inner.load_state_dict(inner.state_dict())


def _assign(_module: nn.Module, _inner: Any, optimizer: Any) -> None:
    optimizer.state = defaultdict(dict)
    optimizer.param_groups = [dict(group) for group in optimizer.param_groups]


def _elastic(module: nn.Module, _inner: Any, optimizer: Any) -> None:
    state = hvd.elastic.TorchState(model=module, optimizer=optimizer)
    state.sync()
    state.restore()


REPLACE: dict[str, Callable[[nn.Module, Any, Any], None]] = {
    "broadcast": _broadcast,
    "broadcast to the inner one": _broadcast_inner,
    "load": _load,
    "load into the inner one": _load_inner,
    "assign": _assign,
    "elastic": _elastic,
}


def scheduler_made_before(way: str) -> dict[str, Any]:
    """Returns learning rates and momenta after four steps of a scheduler that knows only the inner optimizer."""
    with job():
        module, inner = _made()
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(inner, module.named_parameters())
        _step(module, optimizer)
        REPLACE[way](module, inner, optimizer)
        for _ in range(4):
            _step(module, optimizer)
            scheduler.step()
        first = next(module.parameters())
        return {
            "lr": [each.param_groups[0]["lr"] for each in (inner, optimizer)],
            "momentum": [each.state[first]["momentum_buffer"] for each in (inner, optimizer)],
            "weights": training.weights(module),
        }


def hooks_after_load() -> int:
    """Returns how often a hook runs in one step."""
    with job():
        module, inner = _made()
        optimizer = hvd.DistributedOptimizer(inner, module.named_parameters())
        _step(module, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        calls: list[int] = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        _step(module, optimizer)
        return len(calls)


def copies() -> list[str]:
    import copy
    import pickle

    with job():
        module, inner = _made()
        optimizer = hvd.DistributedOptimizer(inner, module.named_parameters())
        return [
            message_of(lambda: copy.deepcopy(optimizer)),
            message_of(lambda: pickle.dumps(optimizer)),
            message_of(lambda: hvd.DistributedOptimizer(optimizer)),
            message_of(lambda: copy.deepcopy(inner)),
        ]


def names() -> list[list[str]]:
    """Returns the names of parameters in an optimizer without given names, before and after one is replaced."""
    with job():
        groups = [{"params": [nn.Parameter(torch.ones(1)) for _ in range(2)]} for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
        found = [sorted(optimizer._parameter_names.values())]
        optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(1))
        optimizer.step()
        return [*found, sorted(optimizer._parameter_names.values())]


# --- state after a broadcast ------------------------------------------------------------------------------------------


def _half() -> tuple[nn.Linear, torch.optim.Optimizer]:
    """Returns a bfloat16 layer and an optimizer with float32 momentum, whose values differ between ranks."""
    layer = nn.Linear(3, 2).bfloat16()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    for parameter in layer.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.full(parameter.shape, 1.001 + hvd.rank())
    return layer, optimizer


def broadcast_state_of_another_type() -> list[torch.Tensor]:
    with job():
        layer, optimizer = _half()
        hvd.broadcast_optimizer_state(optimizer, 0)
        return [optimizer.state[each]["momentum_buffer"] for each in layer.parameters()]


def restore_state_of_another_type() -> list[torch.Tensor]:
    with job():
        layer, optimizer = _half()
        state = hvd.elastic.TorchState(model=layer, optimizer=optimizer)
        for parameter in layer.parameters():
            optimizer.state[parameter]["momentum_buffer"].zero_()
        state.restore()
        return [optimizer.state[each]["momentum_buffer"] for each in layer.parameters()]


def broadcast_into_what_is_held() -> dict[str, Any]:
    """Broadcasts Adam's state while the caller holds some of its tensors. Rank 0 has no state for the last
    parameter."""
    with job() as (rank, _size):
        layer = nn.Linear(3, 2)
        optimizer = torch.optim.Adam(layer.parameters(), lr=torch.tensor(0.5 + rank))
        layer(torch.full((1, 3), 1.0 + rank)).sum().backward()
        if rank == 0:
            layer.bias.grad = None
        optimizer.step()
        held = dict(optimizer.state[layer.weight])
        rate, before = optimizer.param_groups[0]["lr"], [value.clone() for value in held.values()]
        hvd.broadcast_optimizer_state(optimizer, 0)
        return {
            "before": before,
            "held": list(held.values()),
            "rate": rate,
            "is same": all(optimizer.state[layer.weight][name] is value for name, value in held.items()),
            "bias": dict(optimizer.state.get(layer.bias, {})),
        }


def fresh_optimizer() -> dict[str, Any]:
    """Returns gradients and weights after the broadcast of an optimizer without state. One parameter needs no
    gradient."""
    with job() as (rank, _size):
        torch.manual_seed(0)
        layer, table = nn.Linear(3, 2), nn.Embedding(4, 2, sparse=True)
        layer.bias.requires_grad_(False)
        parameters = [*layer.parameters(), *table.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1 + rank, momentum=0.9, weight_decay=0.1)
        before = layer.weight.detach().clone()
        hvd.broadcast_optimizer_state(optimizer, 0, nn.ModuleList([layer, table]))
        assert table.weight.grad is not None
        return {
            "gradient": layer.weight.grad,
            "frozen": layer.bias.grad,
            "is sparse": table.weight.grad.is_sparse,
            "weights": (before, layer.weight.detach()),
            "lr": optimizer.param_groups[0]["lr"],
        }


def other_groups() -> str:
    """The last rank's optimizer has different parameter groups."""
    with job() as (rank, size):
        layer = nn.Linear(3, 2)
        groups = [{"params": [layer.weight]}, {"params": [layer.bias]}] if rank == size - 1 else layer.parameters()
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        text = message_of(lambda: hvd.broadcast_optimizer_state(optimizer, 0))
        hvd.allreduce(torch.ones(1), name="next")
        return text


# --- elastic ----------------------------------------------------------------------------------------------------------


def elastic_model_in_anothers_place() -> tuple[float, float]:
    """Replaces a state's model by another one. Returns the restored value and the value that all ranks get."""
    with job() as (rank, _size):
        state = hvd.elastic.TorchState(model=nn.Linear(1, 1), batch=0)
        state.commit()
        with torch.no_grad():
            other = nn.Linear(1, 1)
            other.weight.fill_(3.0 + rank)
        state.model = other
        with torch.no_grad():
            other.weight.fill_(7.0)
        state.restore()
        restored = other.weight.item() - rank
        state.sync()
        return restored, other.weight.item()


# --- objects that cannot be sent --------------------------------------------------------------------------------------


def objects_that_cannot_be_sent() -> dict[str, str]:
    """Sends objects that are wrong on one rank only. The operation after each has to work."""
    with job() as (rank, size):
        layer = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        if rank == 0:
            optimizer.param_groups[0]["note"] = object()
        state = hvd.elastic.TorchState(note=object() if rank == 0 else 1)
        deep: Any = []
        for _ in range(100):
            deep = [deep]
        calls: dict[str, Callable[[], Any]] = {
            "object": lambda: hvd.broadcast_object(object() if rank == 0 else None, 0),
            "depth": lambda: hvd.broadcast_object(deep if rank == 0 else None, 0),
            "meta": lambda: hvd.broadcast_object(torch.ones(1, device="meta") if rank == 0 else None, 0),
            "other root": lambda: hvd.broadcast_object(object() if rank == size - 1 else None, size - 1, "mine"),
            "gathered": lambda: hvd.allgather_object(print if rank == size - 1 else rank),
            "options": lambda: hvd.broadcast_optimizer_state(optimizer, 0),
            "elastic": state.sync,
        }
        found = {}
        for name, call in calls.items():
            found[name] = message_of(call)
            assert hvd.broadcast_object(rank, size - 1) == size - 1, name
        return found
