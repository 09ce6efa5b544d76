# SPDX-License-Identifier: Apache-2.0
"""optimize(model, optimizer): the fused step is gated, used if it is right, and removed by restore."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import agspeed
import agspeed.horovod.torch as hvd
from agspeed import native
from agspeed.frontend.optimizers import fitness
from agspeed.frontend.optimizers.session import optimizer_session

pytestmark = pytest.mark.smoke

CASES = [
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1}),
]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[torch.Tensor]:
    data = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=data)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def is_fused(model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Trains one step and returns whether it is fused."""
    seen: list[Any] = []
    hook = optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups[0]["fused"]))
    train(model, optimizer, 1)
    hook.remove()
    return bool(seen[-1])


def pair(
    kind: Any, keywords: dict[str, Any]
) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    twin = copy.deepcopy(model)
    return model, kind(model.parameters(), lr=1e-2, **keywords), twin, kind(twin.parameters(), lr=1e-2, **keywords)


@pytest.mark.parametrize(("kind", "keywords"), CASES, ids=[kind.__name__ for kind, _ in CASES])
def test_fused_step_trains_like_the_plain_one(kind: Any, keywords: dict[str, Any]) -> None:
    model, optimizer, twin, plain = pair(kind, keywords)
    returned = agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    assert returned == (model, optimizer)
    mine, reference = train(model, optimizer, 12), train(twin, plain, 12)
    session = optimizer_session(optimizer)
    assert session is not None and session.chosen == "fused", session and session.reason
    assert is_fused(model, optimizer) and optimizer.param_groups[0]["fused"] is None
    for one, other in zip(mine, reference, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_schedule_of_momenta_needs_no_new_look_at_every_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, _, _ = pair(torch.optim.Adam, {"betas": [0.9, 0.999]})
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    train(model, optimizer, 12)
    looks = []
    monkeypatch.setattr(fitness, "why_unfit", lambda optimizer: looks.append(optimizer))
    for beta in (0.95, 0.9, 0.85):
        for group in optimizer.param_groups:
            group["betas"] = (beta, 0.999)
        assert is_fused(model, optimizer)
    assert not looks


def test_the_decision_stays_in_the_report_while_both_steps_are_compared_again() -> None:
    model, optimizer, _, _ = pair(torch.optim.Adam, {})
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    train(model, optimizer, 12)
    session = optimizer_session(optimizer)
    assert session is not None and session.chosen == "fused"
    session._carry_out(optimizer, {"kind": "run", "arm": "eager"})
    assert not is_fused(model, optimizer) and session.chosen == "fused"


def test_restore_gives_the_optimizer_its_own_step_back() -> None:
    model, optimizer, _, plain = pair(torch.optim.AdamW, {})
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    train(model, optimizer, 3)
    agspeed.restore(model, optimizer)
    flags = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    assert flags == {key: value for key, value in plain.param_groups[0].items() if key != "params"}
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_the_report_tells_of_the_optimizer_and_restoring_the_model_restores_it() -> None:
    model, optimizer, _, _ = pair(torch.optim.AdamW, {})
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    train(model, optimizer, 3)
    (found,) = agspeed.report(model).to_dict()["optimizers"]
    assert (found["name"], found["chosen"], found["gate"]["verdict"]) == ("AdamW", "fused", "passed")
    assert "AdamW runs torch's fused step, because" in " ".join(str(agspeed.report(model)).split())
    agspeed.restore(model)
    assert not optimizer._optimizer_step_pre_hooks and not is_fused(model, optimizer)
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    train(model, optimizer, 3)
    assert is_fused(model, optimizer)


def test_paused_runs_the_optimizers_own_step() -> None:
    model, optimizer, _, _ = pair(torch.optim.AdamW, {})
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    train(model, optimizer, 3)
    with agspeed.paused():
        assert not is_fused(model, optimizer)
    assert is_fused(model, optimizer)


def test_optimizers_without_a_fused_step_keep_theirs_with_the_reason() -> None:
    model, optimizer, _, _ = pair(torch.optim.RMSprop, {})
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    session = optimizer_session(optimizer)
    assert session is not None and session.reason == "torch has no fused step for RMSprop"


def fake_ranks() -> None:
    """Makes this process rank 0 of four. The other ranks are simulated."""
    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())


@pytest.mark.parametrize("mode", ["deterministic", "max"])
@pytest.mark.parametrize("when", ["before optimize", "before the first step", "later"])
def test_the_plain_step_runs_among_ranks(mode: str, when: str) -> None:
    model, optimizer, twin, plain = pair(torch.optim.AdamW, {})
    if when == "before optimize":
        fake_ranks()
    try:
        agspeed.optimize(model, optimizer, mode=mode, backends=["eager"])
        if when == "later":
            train(model, optimizer, 6)
            for theirs, ours in zip(twin.parameters(), model.parameters(), strict=True):
                theirs.data.copy_(ours.data)
            plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if when != "before optimize":
            fake_ranks()
        mine, expected = train(model, optimizer, 4), train(twin, plain, 4)
    finally:
        distributed.destroy_process_group()
    session = optimizer_session(optimizer)
    assert session is not None and session.chosen == "eager"
    assert session.reason.startswith("4 ranks train: the fused step rounds differently"), session.reason
    assert all(torch.equal(one, other) for one, other in zip(mine, expected, strict=True))
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    with agspeed.paused():
        pass
    assert not is_fused(model, optimizer), "for good: the group may come again"


@pytest.fixture
def horovod_job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
@pytest.mark.usefixtures("horovod_job")
def test_ranks_of_horovod_are_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, _, _ = pair(torch.optim.AdamW, {})
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    train(model, optimizer, 2)
    assert is_fused(model, optimizer), "alone in a job"
    monkeypatch.setattr(hvd, "size", lambda: 3)
    train(model, optimizer, 2)
    session = optimizer_session(optimizer)
    assert session is not None and session.reason.startswith("3 ranks train: "), session and session.reason
    assert not is_fused(model, optimizer)


@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
@pytest.mark.usefixtures("horovod_job")
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_optimizer_that_horovod_has_wrapped_keeps_its_step_with_the_reason(when: str) -> None:
    model, optimizer, _, _ = pair(torch.optim.AdamW, {})
    wrapped = hvd.DistributedOptimizer(optimizer) if when == "before" else optimizer
    agspeed.optimize(model, wrapped, mode="deterministic", backends=["eager"])
    steps = hvd.DistributedOptimizer(wrapped) if when == "after" else wrapped
    train(model, steps, 3)
    session = optimizer_session(wrapped)
    assert session is not None and session.reason == "this AdamW has a step of its own"
    assert session.gate_result is None and not is_fused(model, steps)
