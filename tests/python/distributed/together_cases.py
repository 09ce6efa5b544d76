# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of tuning together: train a wrapped model to a decision, while things go wrong."""

from __future__ import annotations

import copy
import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import agspeed
from agspeed.backends import candidate
from agspeed.distributed.layouts import layout_of
from agspeed.errors import AgspeedError
from agspeed.frontend.capture import Capture
from agspeed.frontend.session import session_of
from agspeed.tuning import controller
from agspeed.tuning.child.process import Child, Job
from agspeed.tuning.decision_store import DecisionStore

_MOST_STEPS = 6000


class Net(nn.Module):
    """A model whose steps take about two milliseconds, a part of it in element-wise operators."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 4)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(batch))
        for _ in range(4):
            hidden = torch.tanh(hidden) * 0.9 + torch.sigmoid(hidden) * 0.1
        return self.last(hidden)  # type: ignore[no-any-return]


@torch.compiler.assume_constant_result
def _slow_where_not_captured(seconds: float) -> float:
    time.sleep(seconds)
    return 1.0


class SlowEagerly(Net):
    """A model for which every candidate is clearly faster than eager, also beside other busy processes. It computes
    what `Net` computes."""

    pause_s = 0.03

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch) * _slow_where_not_captured(self.pause_s)


class SlightlySlowEagerly(SlowEagerly):
    """For thousands of eager steps."""

    pause_s = 0.005


def wrapped(
    cache: Path, width: int = 64, kind: type[Net] = Net, options: dict[str, Any] | None = None, **settings: Any
) -> DistributedDataParallel:
    """`options` are the wrapper's."""
    torch.manual_seed(3)
    settings = {"mode": "max", "backends": ["native", "aot"], "cache_dir": cache, **settings}
    return DistributedDataParallel(agspeed.optimize(kind(width), **settings), **(options or {}))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()


def train(
    model: DistributedDataParallel,
    *,
    at: int = -1,
    do: Callable[[], None] | None = None,
    before_each: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Trains until the ranks have decided, and returns this rank's results. `do` is called before step `at`, and
    `before_each` before each step with its number."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    count = 0
    while agspeed.status(model) == "tuning" and count < _MOST_STEPS:
        if count == at and do is not None:
            do()
        before_each(count)
        step(model, optimizer)
        count += 1
    for _ in range(3):  # removes what rank syncs leave behind
        step(model, optimizer)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    session = session_of(model.module)
    tuner = session.tuner_snapshot() if session is not None else None
    return {
        "status": str(agspeed.status(model)).partition(":")[0],
        "plan": session.plan if session is not None else "eager",
        "reason": agspeed.status(model).reason,
        "steps": count,
        "weights": weights,
        "hooks": len(model._forward_hooks),
        "arms": {arm["name"]: arm for arm in tuner["arms"]} if tuner is not None else {},
    }


def decided(cache: str) -> dict[str, Any]:
    return train(wrapped(Path(cache)))


def reported(path: str, cache: str) -> dict[str, Any]:
    """Returns the report of a decided model after a step that the wrapper has timed. Saves its page at `path`."""
    model = wrapped(Path(cache))
    train(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(101):
        step(model, optimizer)
    report = agspeed.report(model)
    if dist.get_rank() == 0:
        report.save(path)
    return {"report": report.to_dict(), "text": str(report)}


def work_of_settled_steps(cache: str, arm: str) -> dict[str, Any]:
    """Counts lines of agspeed's Python and requests to stores in each of some settled steps of this thread. It does so
    in a group that chose `arm`, and in a model that trains alone with the same plan. If `arm` has a bucket layout, the
    lone model is compiled instead.
    """
    kind, backends = (SlowEagerly, ["native"]) if arm == "native" else (Net, ["eager"])
    find = DecisionStore.find
    if layout_of(arm):
        DecisionStore.find = lambda _: {"arm": arm}  # type: ignore[method-assign]
    try:
        model = wrapped(Path(cache), kind=kind, backends=backends)
        result = train(model)
    finally:
        DecisionStore.find = find  # type: ignore[method-assign]
    if layout_of(arm):
        _await_recheck(model)
    backends = ["native"] if layout_of(arm) else backends
    alone = agspeed.optimize(kind(), mode="deterministic", backends=backends, cache_dir=Path(cache))
    found = {name: _work_of_steps(trained) for name, trained in (("group", model), ("alone", alone))}
    return result | {"work": found}


def _await_recheck(model: DistributedDataParallel) -> None:
    """Trains until a stored decision has been measured."""
    session = session_of(model.module)
    assert session is not None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(_MOST_STEPS):
        step(model, optimizer)
        if session.tuner_snapshot()["guard"]["blocks"] and not model._forward_hooks:
            return


def _is_doubted(model: nn.Module) -> bool:
    """Whether a rank doubts the decision, as a rank may when the machine has become slower. All get the same answer."""
    if not isinstance(model, DistributedDataParallel):
        return False
    doubts = torch.tensor(float(bool(model._forward_hooks)))
    dist.all_reduce(doubts)
    return bool(doubts)


def _work_of_steps(model: nn.Module, count: int = 40) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(300):  # after these, steps that the report observes are rare
        step(model, optimizer)
    for _ in range(_MOST_STEPS):
        is_settled = not _is_doubted(model)
        found = _work_of_next_steps(model, optimizer, count)
        if is_settled and not _is_doubted(model):
            break
    return found


def _work_of_next_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> dict[str, Any]:
    home, lines, requests = str(Path(agspeed.__file__).parent), [0], []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(home):
            return None
        lines[-1] += event == "line"
        return trace

    def profile(_: Any, event: str, called: Any) -> None:
        if event == "c_call" and isinstance(getattr(called, "__self__", None), dist.Store):
            requests.append(called.__name__)

    try:
        for _ in range(count):
            lines.append(0)
            sys.settrace(trace)
            sys.setprofile(profile)
            step(model, optimizer)
            sys.setprofile(None)
            sys.settrace(None)
    finally:
        sys.setprofile(None)
        sys.settrace(None)
    return {"lines": lines[1:], "requests": requests}


def decided_with_caches(caches: list[str]) -> dict[str, Any]:
    return train(wrapped(Path(caches[dist.get_rank()])))


def compiled_in_children(cache: str) -> dict[str, Any]:
    """Compiles candidate aot in a child. Also returns the jobs of this rank's child."""
    aot, submit, jobs = type(candidate("aot")), Child.submit, []

    def counting(self: Child, job: Job) -> None:
        jobs.append(job.candidate)
        submit(self, job)

    aot.in_process, Child.submit = False, counting  # type: ignore[method-assign]
    try:
        return decided(cache) | {"jobs": jobs}
    finally:
        aot.in_process, Child.submit = True, submit  # type: ignore[method-assign]


def accumulating(cache: str) -> dict[str, Any]:
    """Only every other backward reduces gradients."""
    model = wrapped(Path(cache))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(60):
        with model.no_sync():
            model(torch.randn(16, 64)).square().mean().backward()
        step(model, optimizer)
    return train(model)


def one_rank_does_more(cache: str) -> dict[str, Any]:
    """Rank 0 alone runs forwards, with and without gradients, while the others wait for it in a barrier."""
    model = wrapped(Path(cache))

    def alone() -> None:
        if dist.get_rank() == 0:
            model.module(torch.randn(16, 64)).sum()
            model.module(torch.randn(16, 64)).sum().backward()
            with torch.no_grad():
                model.module(torch.randn(16, 64))
            model.zero_grad()
        dist.barrier()

    return train(model, at=20, do=alone)


def one_rank_looks_first(cache: str) -> dict[str, Any]:
    """Rank 0 alone runs the wrapper once before the first step."""
    model = wrapped(Path(cache), options={"broadcast_buffers": False})
    if dist.get_rank() == 0:
        model(torch.randn(16, 64))
    return train(model)


def adversarial(cache: str) -> dict[str, Any]:
    """Each step first computes the gradient of its inputs, which reduces nothing. The ranks are slow in turn."""
    model = wrapped(Path(cache))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(30):
        if number % 2 == dist.get_rank():
            time.sleep(0.02)
        batch = torch.randn(16, 64, requires_grad=True)
        (slope,) = torch.autograd.grad(model(batch).square().mean(), batch)
        time.sleep(0.01 * ((number + dist.get_rank()) % 3 == 0))
        optimizer.zero_grad()
        model((batch + 0.1 * slope.sign()).detach()).square().mean().backward()
        optimizer.step()
    return train(model)


def one_rank_has_hooks(cache: str) -> dict[str, Any]:
    """Rank 0 alone has a hook that reads its wrapper's outputs, from the first call on."""
    model = wrapped(Path(cache))
    hook = model.register_forward_hook(lambda *_: None) if dist.get_rank() == 0 else None
    result = train(model)
    if hook is not None:
        hook.remove()
        result["hooks"] = len(model._forward_hooks)
    return result


def one_rank_has_more_groups(cache: str) -> dict[str, Any]:
    """Rank 0 alone belongs to a second group."""
    if dist.get_rank() == 0:
        dist.new_group([0], use_local_synchronization=True)
    return train(wrapped(Path(cache)))


def paused_at_one_rank(cache: str) -> dict[str, Any]:
    model = wrapped(Path(cache))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(60):
        if dist.get_rank() == 1 and 10 <= number < 40:
            with agspeed.paused():
                step(model, optimizer)
        else:
            step(model, optimizer)
    return train(model)


def restored_at_one_rank(cache: str) -> dict[str, Any]:
    model = wrapped(Path(cache))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(40):
        if number == 12 and dist.get_rank() == 1:
            agspeed.restore(model.module)
        step(model, optimizer)
    return train(model)


def left_at_one_rank(cache: str) -> dict[str, Any]:
    """Rank 1 gets a model that cannot be tuned, and continues to train eagerly."""
    model = wrapped(Path(cache))
    session = session_of(model.module)
    assert session is not None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(40):
        if number == 12 and dist.get_rank() == 1:
            session.home.why_eager = lambda *_: "injected: another device"  # type: ignore[method-assign]
        step(model, optimizer)
    return train(model)


def evaluating_at_one_rank(cache: str) -> dict[str, Any]:
    """Rank 0 alone runs forwards of the wrapper without gradients whenever the ranks are about to continue together."""
    model = wrapped(Path(cache), options={"broadcast_buffers": False})
    begun: list[bool] = []

    def evaluate(_: int) -> None:
        session = session_of(model.module)
        assert session is not None
        standstill = session.rank_sync._standstill if session.rank_sync is not None else None
        if standstill is None or not standstill.is_begun:
            return
        if dist.get_rank() == 0:
            with torch.no_grad():
                model(torch.randn(16, 64))
        begun.append(standstill.is_begun)
        dist.barrier()

    return train(model, before_each=evaluate) | {"begun": begun}


def stranger_in_the_store(cache: str, victim: str) -> dict[str, Any]:
    """A stranger writes a reply to the store before each step, with a token whose path leads to the folder `victim`."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=10))
    torch.manual_seed(3)
    model = DistributedDataParallel(
        agspeed.optimize(Net(), mode="max", backends=["native", "aot"], cache_dir=Path(cache)), process_group=group
    )
    token = os.path.join("x", *[".."] * 32, victim.lstrip("/"))
    reply = {"backward": 1, "names": ["a", "b"], "homes": ["0" * 16] * 2, "token": token, "refused": None}

    def write(_: int) -> None:
        session = session_of(model.module)
        if dist.get_rank() == 1 and session is not None and session.rank_sync is not None:
            store = session.rank_sync.connection.room.store
            store.set("reply", f"- {json.dumps({**reply, 'nonces': ['0' * 16] * 2})}")

    return train(model, before_each=write)


def settings_differ(cache: str) -> dict[str, Any]:
    return train(wrapped(Path(cache), numerics="standard" if dist.get_rank() == 0 else "exact"))


def one_rank_is_plain(cache: str) -> tuple[str, str]:
    """Returns state and reason of rank 0's model. The other rank does not optimize its own."""
    torch.manual_seed(3)
    model = wrapped(Path(cache)) if dist.get_rank() == 0 else DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(20):
        step(model, optimizer)
    status = agspeed.status(model)
    return str(status).partition(":")[0], status.reason


def refused_at_one_rank(cache: str) -> dict[str, Any]:
    """Rank 1 rejects one candidate whenever it is loaded."""
    load = controller.Controller._load
    if dist.get_rank() == 1:

        def refusing(self: Any, name: str, limit_s: float) -> bool:
            if name != "native":
                return load(self, name, limit_s)
            self._tuner.arm_changed(name, "rejected", "wrong here")
            return True

        controller.Controller._load = refusing  # type: ignore[method-assign]
    try:
        return train(wrapped(Path(cache)))
    finally:
        controller.Controller._load = load  # type: ignore[method-assign]


def two_models(cache: str) -> list[dict[str, Any]]:
    """Trains two wrappers of one group in turns, as a GAN does."""
    models = [wrapped(Path(cache), width) for width in (64, 64)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    for _ in range(30):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer)
    return [train(model) for model in models]


def two_groups(cache: str) -> list[dict[str, Any]]:
    """One model is wrapped for all four ranks, another one for each half of them. One half loses a candidate."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = dist.get_rank() // 2
    native, untouched = type(candidate("native")), type(candidate("native")).compile_in_parts

    def failing(self: Any, *_: Any) -> Any:
        raise RuntimeError("injected: this compile fails")

    models = [
        wrapped(Path(cache) / "all", 64),
        wrapped(Path(cache) / f"half-{half}", 64, options={"process_group": halves[half]}),
    ]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    if half == 1:
        native.compile_in_parts = failing  # type: ignore[method-assign]
    try:
        for _ in range(30):
            for model, optimizer in zip(models, optimizers, strict=True):
                step(model, optimizer)
        return [train(model) for model in reversed(models)]
    finally:
        native.compile_in_parts = untouched  # type: ignore[method-assign]


def slower_than_the_group_allows(cache: str, what: str, seconds: float, timeout_s: float) -> dict[str, Any]:
    """Rank 1 takes `seconds` for its capture or its load, longer than a collective may take."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout_s))
    native, untouched = type(candidate("native")), type(candidate("native")).compile_in_parts
    backend = Capture._backend

    def loading(self: Any, *arguments: Any) -> Any:
        time.sleep(seconds)
        return untouched(self, *arguments)

    left = [True]

    def capturing(self: Any, *arguments: Any) -> Any:
        if left:
            left.clear()
            time.sleep(seconds)
        return backend(self, *arguments)

    if dist.get_rank() == 1 and what == "load":
        native.compile_in_parts = loading  # type: ignore[method-assign]
    elif dist.get_rank() == 1:
        Capture._backend = capturing  # type: ignore[method-assign]
    try:
        return train(wrapped(Path(cache), backends=["native"], options={"process_group": group}))
    finally:
        native.compile_in_parts = untouched  # type: ignore[method-assign]
        Capture._backend = backend  # type: ignore[method-assign]


def copied_while_tuning(cache: str) -> dict[str, Any]:
    model = wrapped(Path(cache))
    found: dict[str, Any] = {}

    def make_copy() -> None:
        found["same"] = all(
            torch.equal(ours, theirs)
            for ours, theirs in zip(copy.deepcopy(model.module).parameters(), model.module.parameters(), strict=True)
        )

    return train(model, at=20, do=make_copy) | found


def sharded(cache: str, when: str) -> tuple[str, torch.Tensor, torch.Tensor]:
    """Returns the status of a model of four blocks under FSDP2, and its weights without and with agspeed. The model is
    optimized before its blocks are sharded, or one block is before the whole model is sharded.
    """
    weights, reason = [], ""
    for is_optimized in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))
        target = model[1] if when == "a block, before" else model
        settings = {"mode": "max", "backends": ["native", "aot"], "cache_dir": Path(cache)}
        if is_optimized:
            agspeed.optimize(target, **settings)
        for block in model if when != "a block, before" else ():
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.randn(4, 64, generator=generator)).square().mean().backward()
            optimizer.step()
        reason = str(agspeed.status(target))
        weights.append(torch.cat([parameter.full_tensor().detach().flatten() for parameter in model.parameters()]))
    return reason, weights[0], weights[1]


def killed_while_tuning(folder: str) -> None:
    """Rank 1 dies. The error of the other rank goes to a file."""
    model = wrapped(Path(folder) / "cache")

    def die() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        train(model, at=15, do=die)
    except (RuntimeError, AgspeedError) as error:
        (Path(folder) / "raised").write_text(f"{type(error).__name__} {error}")
        raise
