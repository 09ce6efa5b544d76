# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of stragglers: one rank is slow in a known way while all of them train."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import agspeed
from agspeed.distributed import groups, metrics
from agspeed.distributed.stragglers import verdict_of
from agspeed.distributed.stragglers.watch import Verdict
from agspeed.log import logger

_STEP_S = 0.01
"""Each rank sleeps so long in its forward, so that other programs on the machine have little weight."""
_SLOW_S = 0.06
"""The slow rank sleeps for this much longer."""
_INTERVAL_S = 0.25
_LONGEST_S = 90


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class _Sleeper(nn.Module):
    """A small model whose forward sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        self.seconds = _STEP_S

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.layers(batch)  # type: ignore[no-any-return]


def trained(cache: str, slow: int, where: str = "forward", until: str = "begun") -> dict[str, Any]:
    """Trains until all ranks know a finding, or until they know that it has ended.

    Args:
        slow: the rank that is slow from the first step on, until all ranks know it.
        where: "forward" or "input".
        until: "begun" or "ended". The job ends after 90 s in any case.
    """
    heard = _Heard()
    logger.addHandler(heard)
    os.environ["AGSPEED_COMPARE_RANKS_S"] = str(_INTERVAL_S)
    try:
        inner, model, optimizer = _made(cache)
        batch, begun = torch.randn(4, 8), time.monotonic()
        is_slow = dist.get_rank() == slow
        while True:
            inner.seconds = _STEP_S + (_SLOW_S if is_slow and where == "forward" else 0.0)
            for _ in range(5):
                if is_slow and where == "input":
                    time.sleep(_SLOW_S)
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
            verdict, is_late = verdict_of(inner) or Verdict(), time.monotonic() - begun > _LONGEST_S
            is_begun, is_ended, is_late = _at_all_ranks(
                bool(verdict.lasting or verdict.ended), bool(verdict.ended), is_late
            )
            is_slow = is_slow and not is_begun
            if is_late or (is_begun if until == "begun" else is_ended):
                break
        group = model.process_group
        return {
            "heard": heard.lines,
            "verdict": verdict,
            "status": str(agspeed.status(model)),
            "report": str(agspeed.report(model)),
            "prometheus": metrics.prometheus(group) if groups.backend_of(group) == "agspeed" else "",
        }
    finally:
        os.environ.pop("AGSPEED_COMPARE_RANKS_S", None)
        logger.removeHandler(heard)


def unwatched(cache: str) -> dict[str, Any]:
    """Trains for two steps under AGSPEED_COMPARE_RANKS_S=0."""
    os.environ["AGSPEED_COMPARE_RANKS_S"] = "0"
    try:
        inner, model, optimizer = _made(cache)
        for _ in range(2):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        return {"verdict": verdict_of(inner), "report": agspeed.report(model).to_dict()["stragglers"]}
    finally:
        os.environ.pop("AGSPEED_COMPARE_RANKS_S", None)


def _made(cache: str) -> tuple[_Sleeper, DistributedDataParallel, torch.optim.Optimizer]:
    """Returns a model that stays eager, its wrapper and its optimizer."""
    torch.manual_seed(3)
    inner = _Sleeper()
    optimized = agspeed.optimize(inner, mode="deterministic", backends=["eager"], cache_dir=Path(cache))
    model = DistributedDataParallel(optimized)
    return inner, model, torch.optim.SGD(model.parameters(), lr=1e-3)


def _at_all_ranks(*flags: bool) -> list[bool]:
    """Returns which flags are set at all ranks."""
    values = torch.tensor([float(flag) for flag in flags])
    dist.all_reduce(values, op=dist.ReduceOp.MIN)
    return [bool(value) for value in values]
