# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of parameters that are added and removed, and of sparse or missing gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import agspeed.horovod.torch as hvd
from tests.python.distributed import training
from tests.python.horovod.programs import job, message_of

# --- parameters that are added and removed ----------------------------------------------------------------------------


def _add_group(optimizer: Any, module: nn.Sequential) -> None:
    optimizer.add_param_group({"params": list(module[-1].parameters()), "lr": 0.05})


def _append(optimizer: Any, module: nn.Sequential) -> None:
    optimizer.param_groups[0]["params"].extend(module[-1].parameters())


def _insert(optimizer: Any, module: nn.Sequential) -> None:
    optimizer.param_groups[0]["params"].insert(0, module[-1].weight)


def _replace(optimizer: Any, module: nn.Sequential) -> None:
    old = module[0][0].weight
    new = module[0][0].weight = nn.Parameter(old.detach() * 2)
    parameters = optimizer.param_groups[0]["params"]
    parameters[next(at for at, each in enumerate(parameters) if each is old)] = new


def _remove(optimizer: Any, module: nn.Sequential) -> None:
    left = module[0][0].weight
    group = optimizer.param_groups[0]
    group["params"] = [each for each in group["params"] if each is not left]


CHANGES: dict[str, Callable[[Any, nn.Sequential], None]] = {
    "add a group": _add_group,
    "append": _append,
    "insert": _insert,
    "replace": _replace,
    "remove": _remove,
}


def changed(
    by_ddp: bool, change: str, of_inner: bool = False, when: str = "between", scale: float = 1.0, **options: Any
) -> list[torch.Tensor]:
    """Returns weights after training before and after a change. `of_inner`: the inner optimizer is changed.

    `when` is "between" two steps, or "accumulating": after the first of two backwards.
    """
    with contextlib.nullcontext() if by_ddp else job():
        module = training.model()
        inner: Any = torch.optim.SGD(module[:-1].parameters(), lr=0.1 * scale, momentum=0.9)
        passes = 2 if when == "accumulating" else 1
        trained: Any = nn.parallel.DistributedDataParallel(module) if by_ddp else module
        made = inner if by_ddp else _distributed(inner, module, passes, options)
        batches = training.batches(6 * passes)
        for step in range(6):
            for at in range(passes):
                if step == 2 and at == passes - 1:
                    CHANGES[change](inner if of_inner or by_ddp else made, module)
                    if by_ddp and passes == 1:
                        trained = nn.parallel.DistributedDataParallel(module)
                alone = by_ddp and at < passes - 1
                with trained.no_sync() if alone else contextlib.nullcontext():
                    trained(next(batches)).square().mean().backward()
            made.step()
            module.zero_grad()
        return training.weights(module)


def _distributed(inner: Any, module: nn.Module, passes: int, options: dict[str, Any]) -> Any:
    named = None if options.pop("without_names", False) else module.named_parameters()
    return hvd.DistributedOptimizer(inner, named, backward_passes_per_step=passes, **options)


def changed_too_late() -> tuple[list[str], list[torch.Tensor]]:
    """Changes between the backward and the step are refused, and training continues."""
    with job():
        module = training.model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(module[:-1].parameters(), lr=0.1), op=hvd.Sum)
        batches = training.batches(3)
        texts = []
        module(next(batches)).square().mean().backward()
        texts.append(message_of(lambda: _add_group(optimizer, module)))
        optimizer.step()
        module.zero_grad()
        module(next(batches)).square().mean().backward()
        _append(optimizer, module)
        texts.append(message_of(optimizer.step))
        module.zero_grad()
        module(next(batches)).square().mean().backward()
        optimizer.step()
        return texts, training.weights(module)


def changed_with_adasum() -> list[torch.Tensor]:
    with job():
        module = training.model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(module[:-1].parameters(), lr=0.1), module[:-1].named_parameters(), op=hvd.Adasum
        )
        for step, batch in enumerate(training.batches(4)):
            if step == 2:
                _add_group(optimizer, module)
                _replace(optimizer, module)
            module(batch).square().mean().backward()
            optimizer.step()
            module.zero_grad()
        return training.weights(module)


# --- gradients that are sparse or missing -----------------------------------------------------------------------------


class _Halved:
    """A compressor that the user wrote."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor * 0.5, None

    @staticmethod
    def decompress(tensor: torch.Tensor, _ctx: Any) -> torch.Tensor:
        return tensor * 2


USE = ([[0], [1]], [[0], [1]], [[0], [0]], [[], [0, 1]], [[1], [1]], [[], []], [[0, 1], []])
"""The tables that each rank looks up, by step."""


def tables(is_sparse: bool, by: str = "average") -> list[torch.Tensor]:
    """Trains tables of which each rank looks up some, and a layer that all ranks use."""
    options: dict[str, Any] = {
        "average": {},
        "sum": {"op": hvd.Sum},
        "compressed": {"compression": _Halved},
        "half": {"compression": hvd.Compression.fp16},
        "as dense": {"sparse_as_dense": True},
        "grouped": {"groups": 1},
    }[by]
    with job() as (rank, _size):
        torch.manual_seed(0)
        found = nn.ModuleList(nn.Embedding(10, 4, sparse=is_sparse) for _ in range(2))
        layer = nn.Linear(4, 1)
        inner = torch.optim.SGD([*found.parameters(), *layer.parameters()], lr=0.5)
        optimizer = hvd.DistributedOptimizer(inner, **options)
        for step, used in enumerate(USE):
            words = torch.tensor([step, rank + 1, 7, step])
            total = torch.ones(4, 4) + sum(found[at](words) for at in used[rank])
            layer(total).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in (*found.parameters(), *layer.parameters())]


def layouts_that_differ(sparse_ranks: list[int]) -> list[torch.Tensor]:
    """Trains a table whose gradient is sparse on some ranks only, in all of three steps."""
    with job() as (rank, _size):
        torch.manual_seed(0)
        table = nn.Parameter(torch.randn(10, 4))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table], lr=0.5), [("table", table)])
        for step in range(3):
            words = torch.tensor([step, rank, 7])
            functional.embedding(words, table, sparse=rank in sparse_ranks).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [table.detach()]


def sparse_gradients_by(op: int) -> str:
    with job():
        table = nn.Embedding(10, 4, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.5), op=op)
        table(torch.tensor([1])).sum().backward()
        return message_of(optimizer.step)


def name_in_use() -> str:
    """On rank 0 a parameter has the name of an operation in flight."""
    with job() as (rank, _size):
        layer = nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.5), layer.named_parameters())
        handle = hvd.allreduce_async(torch.ones(1), name="weight") if rank == 0 else 0
        text = "nothing"
        if rank == 0:
            layer(torch.ones(1, 2)).sum().backward()
            text = message_of(optimizer.step)
        hvd.barrier()
        if rank != 0:
            hvd.allreduce(torch.ones(1), name="weight")
            hvd.allreduce(torch.zeros(1), name="bias")
        else:
            hvd.synchronize(handle)
        return text
