# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of replicas: train, each rank with its own choices, and return what must be
equal."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agspeed
from agspeed.errors import AgspeedError
from agspeed.frontend.optimizers.session import optimizer_session
from agspeed.frontend.session import session_of
from agspeed.log import logger

_WIDTH = 37
"""Not a multiple of a vector's length."""
_WORDS = 50


class Dense(nn.Module):
    """A model with matrices only, because some optimizers accept nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(_WIDTH, _WIDTH, bias=False), nn.Linear(_WIDTH, 4, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(batch)))  # type: ignore[no-any-return]


class Words(nn.Module):
    """A model with a sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(_WORDS, _WIDTH, sparse=True)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.table(batch)  # type: ignore[no-any-return]


class WithTeacher(nn.Module):
    """A model whose forward moves the parameters of a second network, as MoCo and BYOL do."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Dense(), Dense()
        self.teacher.requires_grad_(False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for slow, quick in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.mul_(0.9).add_(torch.softmax(10 * quick, 1), alpha=0.1)
        return self.student(batch) - self.teacher(batch)  # type: ignore[no-any-return]


def optimizers() -> list[str]:
    """The names of torch's optimizers."""
    kinds = {name: getattr(torch.optim, name) for name in torch.optim.__all__}
    base = torch.optim.Optimizer
    return sorted(n for n, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, base) and kind != base)


def bits(tensors: Any) -> list[bytes]:
    return [tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]


def batches(dtype: torch.dtype = torch.float32) -> Iterator[torch.Tensor]:
    """Yields other batches on each rank."""
    generator = torch.Generator().manual_seed(40 + dist.get_rank())
    while True:
        yield torch.randn(16, _WIDTH, generator=generator).to(dtype)


def trained(name: str, dtype: torch.dtype, when: str, steps: int, cache: str) -> dict[str, Any]:
    """Returns the bits of the parameters and of the optimizer's state after `steps`. Rank 1's steps are slower. `when`
    says whether the model is wrapped "before" or "after" it is optimized.
    """
    torch.manual_seed(3)
    model: nn.Module = (Words() if name == "SparseAdam" else Dense()).to(dtype)
    optimizer = _made(name, model)
    settings: dict[str, Any] = {"mode": "max", "backends": ["eager"], "cache_dir": Path(cache)}
    if when == "before":
        model, optimizer = agspeed.optimize(DistributedDataParallel(model), optimizer, **settings)
    else:
        model, optimizer = agspeed.optimize(model, optimizer, **settings)
        model = DistributedDataParallel(model)
    if dist.get_rank() == 1:
        pauses = iter(range(steps))
        optimizer.register_step_pre_hook(lambda *_: time.sleep(2e-4 * (next(pauses) % 3)))
    generator = torch.Generator().manual_seed(60 + dist.get_rank())
    dense = batches(dtype)

    def closure() -> torch.Tensor:
        is_sparse = name == "SparseAdam"
        batch = torch.randint(0, _WORDS, (24,), generator=generator) if is_sparse else next(dense)
        optimizer.zero_grad()
        loss = model(batch).float().square().mean()
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)  # otherwise LBFGS would stop at different times on different ranks
        return total

    for _ in range(steps):
        if name == "LBFGS":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    values = [value for state in optimizer.state.values() for value in state.values()]
    session = optimizer_session(optimizer)
    return {
        "weights": bits(model.parameters()),
        "states": bits(value for value in values if isinstance(value, torch.Tensor)),
        "reason": session.reason if session is not None else "",
    }


def _made(name: str, model: nn.Module) -> torch.optim.Optimizer:
    keywords: dict[str, Any] = {"lr": 1e-2} | ({"max_iter": 3} if name == "LBFGS" else {})
    return getattr(torch.optim, name)(model.parameters(), **keywords)  # type: ignore[no-any-return]


# --- choices of one rank ----------------------------------------------------------------------------------------------


def reduced_by_hand(cache: str, kind: str, steps: int = 12) -> dict[str, Any]:
    """Rank 0 runs native regions and the other rank none. The script itself averages gradients."""
    torch.manual_seed(3)
    model: nn.Module = {"Dense": Dense, "WithTeacher": WithTeacher}[kind]()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    backends = ["native"] if dist.get_rank() == 0 else ["eager"]
    agspeed.optimize(model, optimizer, mode="deterministic", backends=backends, cache_dir=Path(cache))
    data = batches()
    for _ in range(steps):
        optimizer.zero_grad()
        model(next(data)).square().mean().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
    session = session_of(model)
    assert session is not None
    return {"weights": bits(model.parameters()), "plan": session.plan, "report": str(agspeed.report(model))}


def step_function(cache: str, steps: int = 12) -> dict[str, Any]:
    """Rank 0 passes a whole step to `optimize`, the other rank does not."""
    torch.manual_seed(3)
    model = Dense()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    run: Callable[[torch.Tensor], torch.Tensor] = step
    if dist.get_rank() == 0:
        run = agspeed.optimize(step, mode="deterministic", backends=["native", "aot"], cache_dir=Path(cache))
    data = batches()
    for _ in range(steps):
        run(next(data))
    return {"weights": bits(model.parameters()), "status": str(agspeed.status(run))}


# --- replicas that are compared ---------------------------------------------------------------------------------------


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.lines.append(record.getMessage())


def compared(
    cache: str, changes: dict[int, int], silent: int = -1, what: str = "", num_before: int = 0, **settings: Any
) -> dict[str, Any]:
    """Trains a wrapped model for 40 steps and compares its replicas every 10 backwards.

    Args:
        changes: by rank, the step before which the last bit of one of its weights changes.
        silent: the rank that compares nothing.
        what: another event, see `_between`.
        num_before: number of collectives before the model is made.
    """
    rank = dist.get_rank()
    heard = _Heard()
    logger.addHandler(heard)
    if rank != silent:
        os.environ["AGSPEED_CHECK_REPLICAS"] = "10"
    try:
        for _ in range(num_before):
            dist.barrier()
        torch.manual_seed(3)
        settings = {"mode": "deterministic", "backends": ["eager"], "cache_dir": Path(cache), **settings}
        model = DistributedDataParallel(agspeed.optimize(Dense(), **settings))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        data, step, error = batches(), 0, ""
        try:
            for step in range(40):
                if changes.get(rank) == step:
                    model.module.last.weight.detach().view(torch.int32)[0, 0] ^= 1
                _between(model, what, step, rank)
                optimizer.zero_grad()
                model(next(data)).square().mean().backward()
                optimizer.step()
        except AgspeedError as raised:
            error = str(raised)
        return {"heard": heard.lines, "error": error, "step": step, "hooks": len(model._forward_pre_hooks)}
    finally:
        os.environ.pop("AGSPEED_CHECK_REPLICAS", None)
        logger.removeHandler(heard)


def _between(model: DistributedDataParallel, what: str, step: int, rank: int) -> None:
    """Does before a step what a user might do, on one rank alone or on all ranks."""
    batch = torch.ones(16, _WIDTH)
    if what == "accumulating":
        with model.no_sync():
            model(batch).square().mean().backward()
    elif what == "more forwards at rank 0" and rank == 0:
        if step > 0:  # the very first call must find the wrapper
            model.module(batch).sum().backward()
        model(batch)
    elif (what == "restored at rank 1" and rank == 1 and step == 13) or (what == "restored" and step == 13):
        agspeed.restore(model.module)
