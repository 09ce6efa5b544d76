# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of models under `fully_shard`: the same training with and without agspeed."""

from __future__ import annotations

import gc
import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import agspeed
from agspeed.frontend.session import Session, session_of
from agspeed.reporting import summary

_BLOCKS = 4
_STEPS = 10
_MOST_STEPS = 1500


@torch.compiler.assume_constant_result
def _slow_where_not_captured(seconds: float) -> float:
    time.sleep(seconds)
    return 1.0


class Block(nn.Module):
    def __init__(self, width: int, *, is_slow: bool = False, has_breaks: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self._is_slow, self._has_breaks = is_slow, has_breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(self.norm(x))
        if self._is_slow:
            hidden = hidden * _slow_where_not_captured(0.01)
        if self._has_breaks:
            torch._dynamo.graph_break()
        return x + self.dropout(self.down(torch.sigmoid(hidden) * torch.tanh(hidden)))


class Model(nn.Module):
    """Blocks around which the model has parameters of its own."""

    def __init__(
        self,
        width: int = 32,
        *,
        checkpoints: bool = False,
        is_reentrant: bool = False,
        passes: int = 1,
        **of_blocks: Any,
    ) -> None:
        """checkpoints: around each block. passes: through all blocks."""
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 4)
        self.blocks = nn.ModuleList(Block(width, **of_blocks) for _ in range(_BLOCKS))
        self._checkpoints, self._is_reentrant, self._passes = checkpoints, is_reentrant, passes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self._passes * list(self.blocks):
            x = checkpoint(block, x, use_reentrant=self._is_reentrant) if self._checkpoints else block(x)
        return self.last(x)  # type: ignore[no-any-return]


class Training:
    """A sharded model, trained on batches that each rank has for itself."""

    def __init__(
        self,
        *,
        is_one_unit: bool = False,
        compiles_first: str = "",
        pairs: bool = False,
        syncs_late: bool = False,
        options: dict[str, Any] | None = None,
        **of_model: Any,
    ) -> None:
        """options: of `fully_shard`. compiles_first: how the user compiles the first block. pairs: two blocks are
        handed over at a time. syncs_late: reductions are asked for after the forward.
        """
        torch.manual_seed(3)
        self.model = Model(**of_model)
        blocks = self.model.blocks
        if compiles_first == "wrapped":
            blocks[0] = torch.compile(blocks[0], backend="eager")  # type: ignore[assignment]
        for block in blocks if not is_one_unit else ():
            if not pairs:
                fully_shard(block, **(options or {}))
        for number in range(0, _BLOCKS, 2) if pairs else ():
            fully_shard([blocks[number], blocks[number + 1]])
        fully_shard(self.model, **(options or {}))
        if compiles_first == "in place":
            blocks[0].compile(backend="eager")
        elif compiles_first == "forward":
            blocks[0].forward = torch.compile(blocks[0].forward, backend="eager")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.num_steps = 0
        self._syncs_late = syncs_late
        self.before_backward: Callable[[], Any] | None = None
        self._batches = _batches()

    def optimize(self, cache: str, **settings: Any) -> None:
        agspeed.optimize(self.model, cache_dir=Path(cache), **settings)

    def steps(self, count: int, micro_batches: int = 1) -> None:
        for _ in range(count):
            torch.manual_seed(100 + self.num_steps)  # dropout's numbers, whatever was drawn in between
            self.optimizer.zero_grad()
            for number in range(micro_batches):
                is_last = number == micro_batches - 1
                self.model.set_requires_gradient_sync(is_last and not self._syncs_late)  # type: ignore[operator]
                loss = self.model(next(self._batches)).float().square().mean()
                if self.before_backward is not None:
                    self.before_backward()
                self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
                loss.backward()
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
    "pairs": {"pairs": True},
    "called twice": {"passes": 2},
    "called twice, checkpoints": {"passes": 2, "checkpoints": True},
    "reentrant checkpoints": {"checkpoints": True, "is_reentrant": True},
    **{f"compiled {how}": {"compiles_first": how} for how in ("in place", "wrapped", "forward")},
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


def decided_together(cache: str, **of_training: Any) -> dict[str, Any]:
    """Both after as many steps as ranks take to decide, and some more. Eager steps of the tuned model are slow, so that
    it is worth compiling; the factor 1 changes no bit."""
    plain, tuned = Training(**of_training), Training(is_slow=True, **of_training)
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


def evaluated_first(cache: str, kind: str = "") -> dict[str, Any]:
    """Evaluations leave parameters whole, before the model is optimized and before it is trained; rank 1 has agspeed
    disabled.
    """
    plain, tuned = (Training(**KINDS[kind]) for _ in range(2))
    is_disabled = dist.get_rank() == 1
    for training in (plain, tuned):
        training.evaluate(with_gradients=False)
    with mock.patch.dict(os.environ, {"AGSPEED_DISABLE": "1"} if is_disabled else {}):
        tuned.optimize(cache, mode="max", backends=["aot"])
    for training in (plain, tuned):
        training.evaluate(with_gradients=False)
        training.steps(_STEPS)
    session = session_of(tuned.model)
    wrapper = session.wrapper if session is not None else None
    return {"plain": plain.weights(), "tuned": tuned.weights(), "wrapper": wrapper.kind if wrapper else None}


def left_alone(cache: str, how: str) -> dict[str, Any]:
    """Returns why a unit stays eager if it is whole after an evaluation, but FSDP says that it is elsewhere."""
    training = Training(is_one_unit=True)
    training.evaluate(with_gradients=False)
    state: Any = training.model._get_fsdp_state()  # type: ignore[operator]
    if how == "offloaded":
        for parameter in state._fsdp_param_group.fsdp_params:
            parameter.offload_to_cpu = True
    else:
        state._device = torch.device("cuda", 0)
    training.optimize(cache, mode="deterministic", backends=["aot"])
    return {"status": str(agspeed.status(training.model))}


def not_gathered_again(cache: str) -> dict[str, str | None]:
    """Why units are not compiled, by name; the first one does without its parameters in the backward."""
    training = Training()
    training.model.blocks[0].set_unshard_in_backward(False)  # type: ignore[operator]
    training.optimize(cache, mode="deterministic", backends=["aot"])
    return dict(_session(training).target.units)  # type: ignore[attr-defined]


def raising(cache: str, backend: str) -> dict[str, Any]:
    """A candidate raises in the forward of the third unit of a checkpointed model."""
    plain, tuned = (Training(checkpoints=True) for _ in range(2))
    tuned.optimize(cache, mode="deterministic", backends=[backend])
    for training in (plain, tuned):
        training.steps(_STEPS)
    session = _session(tuned)
    decided, region = session.plan, next(region for region in session.regions if region.part == "blocks.2")

    def fail(*_: Any) -> Any:
        raise RuntimeError("injected")

    region.outcomes[backend].runner = fail
    region.select(backend)
    for training in (plain, tuned):
        training.steps(_STEPS)
    return {"decided": decided, "plan": session.plan, "plain": plain.weights(), "tuned": tuned.weights()}


def switched_within_a_step(cache: str, backend: str, how: str) -> dict[str, Any]:
    """Between a loss and its backward, in which checkpoints call units again, the model runs something else."""
    plain, tuned = (Training(checkpoints=True) for _ in range(2))
    tuned.optimize(cache, mode="deterministic", backends=[backend])
    for training in (plain, tuned):
        training.steps(_STEPS)

    def change() -> None:
        if how == "restored":
            agspeed.restore(tuned.model)
            gc.collect()
        elif how == "eager":
            _session(tuned).run_plan("eager")
        else:
            _session(tuned).set_paused(True)

    tuned.before_backward = change
    tuned.steps(1)
    tuned.before_backward = None
    tuned.steps(2)
    plain.steps(3)
    is_clean = not any("forward" in vars(block) for block in tuned.model.blocks)
    return {"plain": plain.weights(), "tuned": tuned.weights(), "is clean": is_clean}


def patched(cache: str) -> dict[str, Any]:
    """Users put something in the place of what runs units: while eager is in force, and around what is compiled."""
    training = Training()
    training.optimize(cache, mode="deterministic", backends=["aot"])
    training.steps(_STEPS)
    session, blocks = _session(training), training.model.blocks
    signature = str(inspect.signature(blocks[0].forward))
    calls = {0: 0, 1: 0}

    def patch(number: int) -> Any:
        inner = blocks[number].forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            calls[number] += 1
            return inner(x)  # type: ignore[no-any-return]

        blocks[number].forward = forward
        return forward

    decided = session.plan
    session.run_plan("eager")
    training.steps(1)
    first = patch(0)
    session.run_plan(decided)
    second = patch(1)
    training.steps(2)
    is_kept = blocks[0].forward is first
    units = {unit["name"]: unit["why"] for unit in agspeed.report(training.model).to_dict()["units"]}
    agspeed.restore(training.model)
    with _counted(session) as compiled:
        training.steps(2)
    return {
        "signature": signature,
        "calls": calls,
        "are kept": is_kept and blocks[0].forward is first and blocks[1].forward is second,
        "why": units["blocks.0"],
        "compiled": compiled,
    }


def paused_units(cache: str) -> list[str]:
    """Which units run compiled that are called one by one while all is paused."""
    training = Training()
    training.optimize(cache, mode="deterministic", backends=["aot"])
    training.steps(_STEPS)
    with _counted(_session(training)) as compiled, agspeed.paused():
        training.model.blocks[0](torch.ones(5, 32))
    return compiled


def restored_at_one_rank(cache: str) -> dict[str, Any]:
    """Rank 1 restores its model before tuning begins; nothing of agspeed is held there by others."""
    plain, tuned = Training(), Training(is_slow=True)
    tuned.optimize(cache, mode="max", backends=["aot"])
    tuned.steps(1)
    if dist.get_rank() == 1:
        agspeed.restore(tuned.model)
        gc.collect()
    is_tuning = torch.ones(1)
    while is_tuning and tuned.num_steps < _MOST_STEPS:
        tuned.steps(10)
        is_tuning = torch.tensor([float(dist.get_rank() == 0 and agspeed.status(tuned.model) == "tuning")])
        dist.all_reduce(is_tuning)
    plain.steps(tuned.num_steps)
    return {"plain": plain.weights(), "tuned": tuned.weights(), "status": str(agspeed.status(tuned.model))}


def _session(training: Training) -> Session:
    session = session_of(training.model)
    assert session is not None
    return session


@contextmanager
def _counted(session: Session) -> Iterator[list[str]]:
    """The parts whose regions are called in the block."""
    called: list[str] = []
    for region in session.regions:
        run, part = session.regions[region.index].outcomes["aot"].runner, str(region.part)
        region.dispatcher.set_target(lambda *args, run=run, part=part: (called.append(part), run(*args))[1])
    yield called
