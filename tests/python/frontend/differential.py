# SPDX-License-Identifier: Apache-2.0
"""Runs the same training script with and without agspeed and compares everything it returns.

A script is ``script(wrap) -> list of values``. It builds its model from fixed seeds, passes it through ``wrap``
(identity or ``agspeed.optimize``) and returns tensors, numbers or other values to compare. Values must be equal
exactly, unless a tolerance is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import agspeed
from agspeed.frontend.session import Session, session_of

SEED = 20

Script = Callable[[Callable[[Any], Any]], Sequence[Any]]


@dataclass
class Outcome:
    """The state after an optimized run."""

    sessions: list[Session] = field(default_factory=list)

    def ran(self, candidate: str) -> list[int]:
        """Indices of the regions whose last choice is `candidate`."""
        return [r.index for s in self.sessions for r in s.regions if s.plan != "eager" and r.selected == candidate]

    def reasons(self) -> list[str]:
        """The reasons why anything runs eagerly; empty if nothing does."""
        found = [f"{s.state}: {s.reason}" for s in self.sessions]
        found += [o.reason for s in self.sessions for r in s.regions for o in r.outcomes.values() if o.reason]
        found += [
            arm["reason"]
            for s in self.sessions
            for arm in (s.tuner_snapshot() or {"arms": []})["arms"]
            if arm["reason"]
        ]
        found += [reason for s in self.sessions for (_, reason) in [*s.history.fallbacks, *s.history.breaks]]
        return found


def compare(script: Script, *, candidate: str = "aot", tolerance: float = 0.0, **keywords: Any) -> Outcome:
    """Runs `script` both ways and asserts equal results. Returns the state after the optimized run."""
    expected = _run(script, lambda target: target)
    outcome = Outcome()

    def optimize(target: Any) -> Any:
        options = {"mode": "deterministic", "backends": [candidate], **keywords}
        optimized = agspeed.optimize(target, **options)
        session = session_of(optimized)
        if session is not None:
            outcome.sessions.append(session)
        return optimized

    actual = _run(script, optimize)
    assert len(actual) == len(expected)
    for index, (mine, reference) in enumerate(zip(actual, expected, strict=True)):
        _assert_equal(mine, reference, tolerance, f"value {index} of the script (seed {SEED})")
    return outcome


def _run(script: Script, wrap: Callable[[Any], Any]) -> list[Any]:
    torch._dynamo.reset()
    torch.manual_seed(SEED)
    values = list(script(wrap))
    values.append(torch.rand(3))  # the user's random stream must be in the same state as after eager
    return values


def _assert_equal(mine: Any, reference: Any, tolerance: float, where: str) -> None:
    if not isinstance(reference, torch.Tensor):
        assert mine == reference, where
        return
    assert mine.dtype == reference.dtype and mine.shape == reference.shape, where
    if tolerance == 0.0:
        assert torch.equal(mine, reference), f"{where}: largest difference {(mine - reference).abs().max()}"
    else:
        torch.testing.assert_close(mine, reference, rtol=tolerance, atol=tolerance, msg=lambda m: f"{where}: {m}")


def train(model: Any, steps: int = 4, *, batch: int = 6, width: int = 8, lr: float = 0.1) -> list[Any]:
    """A plain loop on fixed data; returns losses and final parameters and buffers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    data = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = as_loss(model(torch.randn(batch, width, generator=data)))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *state(model)]


def as_loss(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


def state(model: Any) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]
