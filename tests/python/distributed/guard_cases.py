# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of the drift guard: a decision of all ranks becomes slow and is measured again.

They train on the same batches as a plain model. Candidate aot runs eager's operators, so weights must have eager's
bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import agspeed
from agspeed.frontend.session import Session, session_of
from agspeed.tuning.decision_store import DecisionStore
from tests.python.distributed import tuned_cases
from tests.python.distributed.together_cases import Net, SlightlySlowEagerly

_SLOWER_S = 0.03
"""The least slowdown: several times the longest eager step seen on a busy machine."""
_FOR_LONG = 5500
"""The guard finds a lasting drift within this number of steps, even if a busy machine has just caused a false alarm."""


class _Both(nn.Module):
    def __init__(self, halves: Sequence[nn.Module]) -> None:
        super().__init__()
        self.halves = nn.ModuleList(halves)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.halves
        return first(x) + second(x)  # type: ignore[no-any-return]


def drifting(
    cache: str, stored: str = "", slow_ranks: tuple[int, ...] = (), after: int = 0, steps: int = _FOR_LONG
) -> dict[str, Any]:
    """Lets the ranks decide, or take the decision `stored`. After `after` steps, the chosen plan becomes slow on
    `slow_ranks`. Trains until the plan is given up if it is slow, and until it is measured again otherwise, for `steps`
    steps at most.
    """
    tuned, session = _decided(cache, stored)
    found: dict[str, Any] = {"decided": session.tuner_snapshot()["decision"]["arm"]}
    tuned.steps(after)
    if dist.get_rank() in slow_ranks:
        _slow_down(session)
    begun = tuned.num_steps
    counter = "rollbacks" if slow_ranks else "blocks"  # on a busy machine it may have been measured before it was slow
    while not _is_through(tuned.model, session, counter) and tuned.num_steps - begun < steps:
        tuned.steps(1)
    tuned.steps(tuned_cases.MORE_STEPS)
    expected = tuned_cases.wrapped(_made(cache, is_optimized=False))
    expected.steps(tuned.num_steps)
    return found | {
        "steps": tuned.num_steps - begun,
        "status": str(agspeed.status(tuned.model)).partition(":")[0],
        "reason": agspeed.status(tuned.model).reason,
        "weights": tuned.weights(),
        "expected": expected.weights(),
        "caps": list(tuned.model.bucket_bytes_cap_list),
        "hooks": len(tuned.model._forward_hooks),
        "guard": session.tuner_snapshot()["guard"],
    }


def one_rank_doubts(cache: str) -> dict[str, Any]:
    """Rank 1 alone finds its steps slow; no rank must wait for another."""
    tuned, session = _decided(cache)
    tuned.steps(tuned_cases.MORE_STEPS)
    rank_sync = session.rank_sync
    assert rank_sync is not None
    if dist.get_rank() == 1:
        rank_sync.seek_resync()
    seeks = [rank_sync._resync.is_sought]
    tuned.steps(1100)
    expected = tuned_cases.wrapped(_made(cache, is_optimized=False))
    expected.steps(tuned.num_steps)
    return {
        "seeks": [*seeks, rank_sync._resync.is_sought],
        "status": str(agspeed.status(tuned.model)).partition(":")[0],
        "weights": tuned.weights(),
        "expected": expected.weights(),
        "hooks": len(tuned.model._forward_hooks),
    }


def lost_at_one_rank(cache: str) -> dict[str, Any]:
    """A stored decision with buckets of its own is doubted on both ranks. Before the resync it fails on rank 1."""
    tuned, session = _decided(cache, "aot/b0.25-1")
    rank_sync = session.rank_sync
    assert rank_sync is not None
    while not rank_sync._resync.is_sought and tuned.num_steps < _FOR_LONG:
        tuned.steps(1)
    is_sought = rank_sync._resync.is_sought
    if dist.get_rank() == 1:
        region = session.regions[0]
        region.outcomes["aot"].reason = "injected"
        session._on_region_failure(region, "aot", RuntimeError("injected"))
    while tuned.model._forward_hooks and tuned.num_steps < _FOR_LONG:
        tuned.steps(1)
    tuned.steps(tuned_cases.MORE_STEPS)
    expected = tuned_cases.wrapped(_made(cache, is_optimized=False))
    expected.steps(tuned.num_steps)
    return {
        "is_sought": is_sought,
        "steps": tuned.num_steps,
        "plan": session.plan,
        "weights": tuned.weights(),
        "expected": expected.weights(),
        "caps": list(tuned.model.bucket_bytes_cap_list),
        "hooks": len(tuned.model._forward_hooks),
    }


def two_sessions(cache: str) -> dict[str, Any]:
    """Two optimized halves in one wrapper, each with a stored decision, which would be measured after 200 steps."""
    find = DecisionStore.find
    DecisionStore.find = lambda _: {"arm": "aot"}  # type: ignore[method-assign]
    try:
        halves = [_made(cache) for _ in range(2)]
        tuned = tuned_cases.wrapped(_Both(halves))
        while any(agspeed.status(half) == "tuning" for half in halves) and tuned.num_steps < _FOR_LONG:
            tuned.steps(1)
    finally:
        DecisionStore.find = find  # type: ignore[method-assign]
    tuned.steps(600)
    expected = tuned_cases.wrapped(_Both([_made(cache, is_optimized=False) for _ in range(2)]))
    expected.steps(tuned.num_steps)
    return {
        "status": [str(agspeed.status(half)).partition(":")[0] for half in halves],
        "steps": tuned.num_steps,
        "weights": tuned.weights(),
        "expected": expected.weights(),
        "hooks": len(tuned.model._forward_hooks),
    }


def _made(cache: str, *, is_optimized: bool = True) -> Net:
    return tuned_cases.made(cache, is_optimized=is_optimized, kind=SlightlySlowEagerly)


def _decided(cache: str, stored: str = "") -> tuple[tuned_cases.Training, Session]:
    """Returns a model for which the ranks have decided, or have taken the decision `stored`."""
    find = DecisionStore.find
    if stored:
        DecisionStore.find = lambda _: {"arm": stored}  # type: ignore[method-assign]
    try:
        tuned = tuned_cases.wrapped(_made(cache))
        tuned.until_decided()
    finally:
        DecisionStore.find = find  # type: ignore[method-assign]
    session = session_of(tuned.model.module)
    assert session is not None
    return tuned, session


def _is_through(model: torch.nn.Module, session: Session, counter: str) -> bool:
    return session.tuner_snapshot()["guard"][counter] > 0 and not model._forward_hooks


def _slow_down(session: Session) -> None:
    """Makes captured graphs slower than eager ever was from now on, and eager, too, while the buckets are not the
    user's."""
    eager = session.tuner_snapshot()["arms"][0]["seconds"]
    seconds = max(_SLOWER_S, 2 * eager["p95"]) if eager else _SLOWER_S
    runner, target, rank_sync = session.runner, session.runner._target, session.rank_sync
    assert rank_sync is not None and rank_sync.layouts is not None
    layouts = rank_sync.layouts
    runner._run_captured = _slowed(runner._captured(), seconds, lambda: True)
    target.eager = _slowed(target.eager, seconds, lambda: layouts.current is not None)
    runner.select(session.plan, observed=False)


def _slowed(call: Callable[..., Any], seconds: float, is_slow: Callable[[], bool]) -> Callable[..., Any]:
    def slowly(*args: Any, **kwargs: Any) -> Any:
        if is_slow():
            time.sleep(seconds)
        return call(*args, **kwargs)

    return slowly
