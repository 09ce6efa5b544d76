# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of a wrapped model that tunes with them.

They cover features of wrappers, and actions of users before and after the ranks have decided. Candidate aot runs
eager's operators, so weights must have eager's bits.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import agspeed
from agspeed.frontend.session import session_of
from tests.python.distributed.together_cases import Net, SlowEagerly

_MOST_STEPS = 1500
MORE_STEPS = 12


def batches() -> Iterator[torch.Tensor]:
    """Yields other batches on each rank."""
    generator = torch.Generator().manual_seed(40 + dist.get_rank())
    while True:
        yield torch.randn(16, 64, generator=generator)


def made(cache: str, *, is_optimized: bool, kind: type[Net] = SlowEagerly) -> Net:
    """Returns a model. One that is not optimized computes the same, but is not slow."""
    torch.manual_seed(3)
    model = kind() if is_optimized or not issubclass(kind, SlowEagerly) else Net()
    if is_optimized:
        agspeed.optimize(model, mode="max", backends=["aot"], cache_dir=Path(cache))
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


class Training:
    """One model, trained on the same batches as every other one on this rank."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.num_steps = 0
        self.batches = batches()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(next(self.batches)).square().mean().backward()
            self.optimizer.step()
            self.num_steps += 1

    def until_decided(self) -> None:
        while agspeed.status(self.model) == "tuning" and self.num_steps < _MOST_STEPS:
            self.steps(1)

    def weights(self) -> torch.Tensor:
        return torch.cat([value.detach().flatten() for value in self.model.state_dict().values()])


# --- features of wrappers ---------------------------------------------------------------------------------------------


def wrapped(model: nn.Module) -> Training:
    return Training(DistributedDataParallel(model), sgd(model))


def power_sgd(model: nn.Module) -> Training:
    training = wrapped(model)
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=4)
    training.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return training


def _halved(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0] / 2


def unknown_hook(model: nn.Module) -> Training:
    training = wrapped(model)
    reduced = lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(_halved)  # noqa: E731
    training.model.register_comm_hook(None, reduced)
    return training


def static_graph(model: nn.Module) -> Training:
    return Training(DistributedDataParallel(model, static_graph=True), sgd(model))


WRAPPERS: dict[str, Callable[[nn.Module], Training]] = {
    wrap.__name__: wrap for wrap in (power_sgd, unknown_hook, static_graph)
}


def tuned_under(wrapper: str, cache: str) -> dict[str, Any]:
    """Returns weights after the same steps with and without agspeed, and the arms that were tried."""
    tuned = WRAPPERS[wrapper](made(cache, is_optimized=True))
    tuned.until_decided()
    tuned.steps(MORE_STEPS)
    expected = WRAPPERS[wrapper](made(cache, is_optimized=False))
    expected.steps(tuned.num_steps)
    session = session_of(tuned.model.module)
    assert session is not None
    return {
        "weights": tuned.weights(),
        "expected": expected.weights(),
        "parameters": torch.cat([value.detach().flatten() for value in tuned.model.parameters()]),
        "status": str(agspeed.status(tuned.model)),
        "arms": [arm["name"] for arm in session.tuner_snapshot()["arms"]],
    }


def joined(cache: str) -> dict[str, Any]:
    """Rank 1 has more batches. A model that tunes within a join tunes alone."""
    found = {}
    for is_optimized in (True, False):
        training = wrapped(made(cache, is_optimized=is_optimized))
        with Join([training.model]):
            training.steps(150 + 20 * dist.get_rank())
        found["weights" if is_optimized else "expected"] = training.weights()
        if is_optimized:
            session = session_of(training.model.module)
            assert session is not None
            found["arms"] = [arm["name"] for arm in session.tuner_snapshot()["arms"]]
    return found


def replicated(cache: str, when: str) -> dict[str, Any]:
    """Uses `replicate()` instead of a wrapper. `when` says whether it is called "before" or "after" agspeed, or on a
    module "around" the optimized one.
    """
    found: dict[str, Any] = {}
    count = 0
    for is_optimized in (True, False):
        torch.manual_seed(3)
        net = SlowEagerly() if is_optimized else Net()
        model = nn.Sequential(net) if when == "around" else net
        if when == "before":
            replicate(model)
        if is_optimized:
            agspeed.optimize(net, mode="max", backends=["aot"], cache_dir=Path(cache))
        if when != "before":
            replicate(model)
        training = Training(model, sgd(model))
        if is_optimized and when == "around":  # a fixed number, because ranks that tune alone decide at different steps
            training.steps(120)
        elif is_optimized:
            while agspeed.status(net) == "tuning" and training.num_steps < _MOST_STEPS:
                training.steps(1)
        training.steps(MORE_STEPS if is_optimized else count)
        count = training.num_steps
        found["weights" if is_optimized else "expected"] = training.weights()
        if is_optimized:
            found |= {"status": str(agspeed.status(net)), "steps": count, "hooks": len(model._forward_hooks)}
            found["report"] = agspeed.report(net).to_dict()["group"]
    return found


# --- what users do to a tuned model -----------------------------------------------------------------------------------


def lived_with(cache: str) -> dict[str, Any]:
    """Returns weights of a tuned model and of a plain one after each action of its user, by the action's name."""
    tuned, plain = (wrapped(made(cache, is_optimized=is_optimized)) for is_optimized in (True, False))
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def compare(what: str) -> None:
        plain.steps(tuned.num_steps - plain.num_steps)
        found[what] = (tuned.weights(), plain.weights())

    tuned.until_decided()
    decision = str(agspeed.status(tuned.model))
    compare("decided")
    with agspeed.paused():
        tuned.steps(MORE_STEPS)
    compare("paused")
    tuned.steps(MORE_STEPS)
    compare("went on")
    copied = copy.deepcopy(tuned.model.module)
    found["deepcopy"] = tuple(
        torch.cat([value.detach().flatten() for value in model.state_dict().values()])
        for model in (copied, tuned.model.module)
    )
    keys = list(tuned.model.state_dict()) == list(plain.model.state_dict())
    file = io.BytesIO()
    torch.save({"model": tuned.model.state_dict(), "optimizer": tuned.optimizer.state_dict()}, file)
    resumed = _resumed(cache, file, tuned.num_steps)
    tuned.steps(MORE_STEPS)
    compare("saved")
    resumed.steps(MORE_STEPS)
    found["resumed"] = (resumed.weights(), plain.weights())
    agspeed.restore(tuned.model)
    tuned.steps(MORE_STEPS)
    compare("restored")
    return {"found": found, "status": decision, "keys are those of a plain model": keys}


def _resumed(cache: str, file: io.BytesIO, num_steps: int) -> Training:
    """Continues from a checkpoint as a new process would."""
    training = wrapped(made(cache, is_optimized=True))
    file.seek(0)
    saved = torch.load(file)
    training.model.load_state_dict(saved["model"])
    training.optimizer.load_state_dict(saved["optimizer"])
    for _ in range(num_steps):
        next(training.batches)
    return training


def group_made_anew(cache: str, store: str, is_decided: bool) -> dict[str, Any]:
    """The group ends, during tuning or after it. A new group replaces it, and the model gets a wrapper of the new
    one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model, plain = (made(cache, is_optimized=is_optimized) for is_optimized in (True, False))
    found = []
    for number in range(2):
        tuned, expected = wrapped(model), wrapped(plain)
        if is_decided:
            tuned.until_decided()
        else:
            tuned.steps(30)
        if number == 1:
            tuned.until_decided()
            tuned.steps(MORE_STEPS)
        expected.steps(tuned.num_steps)
        found.append((tuned.weights(), expected.weights()))
        if number == 0:
            dist.barrier()
            dist.destroy_process_group()
            dist.init_process_group("agspeed", init_method=f"file://{store}", rank=rank, world_size=size)
    fresh = wrapped(made(cache + "-fresh", is_optimized=True))
    fresh.until_decided()
    return {"found": found, "status": str(agspeed.status(model)), "fresh": str(agspeed.status(fresh.model))}
