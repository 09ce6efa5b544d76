# SPDX-License-Identifier: Apache-2.0
"""What ranks do in tests of models that `fully_shard` has sharded: the same training with and without agspeed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import agspeed
from agspeed.reporting import summary

_BLOCKS = 4
_STEPS = 10
_MOST_STEPS = 1500


class Block(nn.Module):
    def __init__(self, width: int, *, is_slow: bool = False, has_breaks: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self._is_slow, self._has_breaks = is_slow, has_breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_slow and not torch.compiler.is_compiling():
            time.sleep(0.003)
        hidden = self.up(self.norm(x))
        if self._has_breaks:
            torch._dynamo.graph_break()
        return x + self.dropout(self.down(torch.sigmoid(hidden) * torch.tanh(hidden)))


class Model(nn.Module):
    """Blocks around which the model has parameters of its own."""

    def __init__(self, width: int = 32, *, checkpoints: bool = False, **of_blocks: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 4)
        self.blocks = nn.ModuleList(Block(width, **of_blocks) for _ in range(_BLOCKS))
        self._checkpoints = checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self._checkpoints else block(x)
        return self.last(x)  # type: ignore[no-any-return]


class Training:
    """A sharded model, trained on batches that each rank has for itself."""

    def __init__(
        self,
        *,
        is_one_unit: bool = False,
        compiles_first: bool = False,
        options: dict[str, Any] | None = None,
        **of_model: Any,
    ) -> None:
        """options: of `fully_shard`. compiles_first: the user compiles the first block."""
        torch.manual_seed(3)
        self.model = Model(**of_model)
        for block in self.model.blocks if not is_one_unit else ():
            fully_shard(block, **(options or {}))
        fully_shard(self.model, **(options or {}))
        if compiles_first:
            self.model.blocks[0].compile(backend="eager")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.num_steps = 0
        self._batches = _batches()

    def optimize(self, cache: str, **settings: Any) -> None:
        agspeed.optimize(self.model, cache_dir=Path(cache), **settings)

    def steps(self, count: int, micro_batches: int = 1) -> None:
        for _ in range(count):
            torch.manual_seed(100 + self.num_steps)  # dropout's numbers, whatever was drawn in between
            self.optimizer.zero_grad()
            for number in range(micro_batches):
                self.model.set_requires_gradient_sync(number == micro_batches - 1)  # type: ignore[operator]
                self.model(next(self._batches)).float().square().mean().backward()
            self.optimizer.step()
            self.num_steps += 1

    def evaluate(self, *, with_gradients: bool) -> torch.Tensor:
        """Without dropout, of a batch of another size."""
        self.model.eval()
        with torch.set_grad_enabled(with_gradients):
            result: torch.Tensor = self.model(torch.ones(5, 8))
        if with_gradients:
            result.sum().backward()
        self.model.train()
        return result.detach()

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.full_tensor().detach().flatten() for parameter in self.model.parameters()])  # type: ignore[attr-defined]


def _batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(40 + dist.get_rank())
    while True:
        yield torch.randn(6, 8, generator=generator)


def trained(cache: str, backend: str, kind: str = "", micro_batches: int = 1) -> dict[str, Any]:
    """Weights without agspeed and with one candidate, which is taken untimed. kind: a name of KINDS."""
    plain, tuned = (Training(**KINDS[kind]) for _ in range(2))
    tuned.optimize(cache, mode="deterministic", backends=[backend])
    for training in (plain, tuned):
        training.steps(_STEPS, micro_batches)
    report = agspeed.report(tuned.model)
    return {
        "plain": plain.weights(),
        "tuned": tuned.weights(),
        "status": str(agspeed.status(tuned.model)),
        "units": report.to_dict()["units"],
        "text": " ".join(str(report).split()),
    }


KINDS: dict[str, dict[str, Any]] = {
    "": {},
    "kept whole": {"options": {"reshard_after_forward": False}},
    "mixed precision": {"options": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, "dropout": 0.0},
    "checkpoints": {"checkpoints": True},
    "one unit": {"is_one_unit": True},
    "graph breaks": {"has_breaks": True},
    "one compiled": {"compiles_first": True},
}


def lived_with(cache: str) -> dict[str, Any]:
    """Weights of both after each thing that a user does to the tuned model, by what that is."""
    plain, tuned = Training(), Training()
    tuned.optimize(cache, mode="deterministic", backends=["aot"])
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for what in ("decided", "evaluated", "paused", "went on", "restored"):
        for with_gradients in (False, True) if what == "evaluated" else ():
            results = [training.evaluate(with_gradients=with_gradients) for training in (plain, tuned)]
            found[f"evaluation, {with_gradients}"] = (results[0], results[1])
        if what == "restored":
            agspeed.restore(tuned.model)
        with agspeed.paused() if what == "paused" else nullcontext():
            tuned.steps(4)
        plain.steps(4)
        found[what] = (plain.weights(), tuned.weights())
    is_clean = not any("forward" in vars(block) for block in tuned.model.blocks)
    names = list(tuned.model.state_dict()) == list(plain.model.state_dict())
    return {"found": found, "is clean": is_clean, "names": names}


def decided_together(cache: str) -> dict[str, Any]:
    """Both after as many steps as ranks take to decide, and some more."""
    plain, tuned = Training(is_slow=True), Training(is_slow=True)
    tuned.optimize(cache, mode="max", backends=["aot"])
    while agspeed.status(tuned.model) == "tuning" and tuned.num_steps < _MOST_STEPS:
        tuned.steps(1)
    tuned.steps(_STEPS)
    plain.steps(tuned.num_steps)
    report = agspeed.report(tuned.model)
    return {
        "plain": plain.weights(),
        "tuned": tuned.weights(),
        "status": str(agspeed.status(tuned.model)),
        "steps": tuned.num_steps,
        "units": report.to_dict()["units"],
        "sentence": summary.group(report.to_dict()["group"]),
        "hooks": len(tuned.model._forward_hooks) - len(plain.model._forward_hooks),
    }
