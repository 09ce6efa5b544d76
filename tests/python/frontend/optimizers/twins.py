# SPDX-License-Identifier: Apache-2.0
"""Trains models with found optimizers beside twins without agspeed, and compares weights and states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import agspeed
from agspeed.frontend.optimizers.session import OptimizerSession, optimizer_session

SEED = 7


def net(width: int = 8) -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(width, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))


def optimized(model: nn.Module, **keywords: Any) -> Any:
    return agspeed.optimize(model, **{"mode": "deterministic", "backends": ["eager"], **keywords})


def train(model: nn.Module, optimizer: Any, steps: int = 6, seed: int = SEED) -> None:
    data = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=data)).square().mean().backward()
        optimizer.step()


def found(optimizer: Optimizer) -> OptimizerSession:
    session = optimizer_session(optimizer)
    assert session is not None, "the optimizer was not found"
    return session


def check_fused(optimizer: Optimizer) -> None:
    assert found(optimizer).chosen == "fused", found(optimizer).reason


def forms(optimizer: Optimizer) -> list[bool]:
    """Returns a list to which each later step adds whether it is fused."""
    seen: list[bool] = []
    optimizer.register_step_pre_hook(lambda own, *_: seen.append(bool(own.param_groups[0]["fused"])))
    return seen


def check_same(mine: Any, expected: Any, what: str = "", *, exact: bool = False) -> None:
    """Asserts that nested values have the same keys, types and shapes, and numbers within rounding errors."""
    assert type(mine) is type(expected), (what, SEED)
    if isinstance(mine, dict):
        assert list(mine) == list(expected), (what, SEED)
        for key in mine:
            check_same(mine[key], expected[key], f"{what}.{key}", exact=exact)
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(expected), (what, SEED)
        for index, (one, other) in enumerate(zip(mine, expected, strict=True)):
            check_same(one, other, f"{what}.{index}", exact=exact)
    elif isinstance(mine, torch.Tensor):
        tolerances = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(mine, expected, **tolerances, msg=lambda text: f"{what}, seed {SEED}: {text}")
    else:
        assert mine == expected, (what, SEED)


def compare(script: Callable[[Callable[[nn.Module], Any]], tuple[list[Any], list[Optimizer]]], *fused: bool) -> None:
    """Runs a script with and without agspeed. It returns states to compare, and its optimizers; `fused` says which of
    these were fused."""
    expected, _ = script(lambda model: model)
    mine, optimizers = script(optimized)
    assert [found(each).chosen == "fused" for each in optimizers] == list(fused), [found(e).reason for e in optimizers]
    check_same(mine, expected, exact=not any(fused))
