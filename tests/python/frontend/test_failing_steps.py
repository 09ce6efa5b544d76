# SPDX-License-Identifier: Apache-2.0
"""A candidate that passed the gate raises in a later step: the tuner gets the failure, and training goes on."""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.backends import candidate
from agspeed.backends.joint import Recorder
from agspeed.frontend.session import Session, session_of
from tests.python.frontend.differential import as_loss, state
from tests.python.support.small_models import FAST, data, mlp, steps

_NTH = 3
_LONGEST_S = 300.0
"""Tuning takes seconds, or minutes on a busy machine."""


class Bomb:
    """Raises at the `_NTH` call in training. Calls of the gate do not count: another plan is active during them."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.session: Session | None = None
        self.error = error or RuntimeError("the kernel is gone")
        self.calls = 0

    def tick(self) -> None:
        if self.session is not None and self.session.plan == "aot":
            self.calls += 1
            if self.calls == _NTH:
                raise self.error

    @property
    def has_gone_off(self) -> bool:
        return self.calls >= _NTH


def _in_forward(monkeypatch: pytest.MonkeyPatch, bomb: Bomb) -> None:
    cls = type(candidate("aot"))
    original = cls.compile

    def compile_planted(self: Any, *args: Any) -> Any:
        runner = original(self, *args)

        def run(*inputs: Any) -> Any:
            bomb.tick()
            return runner(*inputs)

        return run

    monkeypatch.setattr(cls, "compile", compile_planted)


def _in_backward(monkeypatch: pytest.MonkeyPatch, bomb: Bomb) -> None:
    original = Recorder.record

    def record(self: Recorder, role: str, graph: Any, inputs: Sequence[Any], run: Any) -> Any:
        def planted(args: list[Any]) -> Any:
            taken = list(args)
            args.clear()  # as compiled code does
            bomb.tick()
            return run(taken)

        return original(self, role, graph, inputs, planted if role == "backward" else run)

    monkeypatch.setattr(Recorder, "record", record)


PLACES: dict[str, Callable[[pytest.MonkeyPatch, Bomb], None]] = {"forward": _in_forward, "backward": _in_backward}


@pytest.fixture(params=PLACES)
def bomb(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bomb:
    planted = Bomb()
    PLACES[request.param](monkeypatch, planted)
    return planted


def _train_until(model: nn.Module, is_over: Callable[[], bool]) -> int:
    """Trains on equal batches. Returns the number of steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    give_up = time.monotonic() + _LONGEST_S
    for step in itertools.count():
        if is_over():
            return step
        assert time.monotonic() < give_up, f"{step} steps in {_LONGEST_S:.0f} s were not enough"
        optimizer.zero_grad()
        as_loss(model(data(4, 8, seed=step % 7))).backward()
        optimizer.step()
    raise AssertionError("there is always another step")


def _train(model: nn.Module, num_steps: int) -> None:
    left = iter(range(num_steps))
    _train_until(model, lambda: next(left, None) is None)


def _plans(model: nn.Module) -> dict[str, Any]:
    return {plan["name"]: plan for plan in agspeed.report(model).to_dict()["plans"]}


def test_while_tuning_another_arm_runs_and_the_failed_one_is_out(
    bomb: Bomb, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    options = {"mode": "max", "backends": ["aot", "graph-eager"], "cache_dir": tmp_path}
    model = agspeed.optimize(mlp(), numerics="exact", **options)
    session = bomb.session = session_of(model)
    num_steps = _train_until(model, lambda: bomb.has_gone_off)
    assert session.plan != "aot" and agspeed.status(model) == "tuning"
    _train(model, 40)
    assert bomb.calls == _NTH, "it ran again"
    expected = mlp()
    _train(expected, num_steps)
    _train(expected, 40)
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))
    failed = _plans(model)["aot"]
    assert failed["state"] == "failed" and "the kernel is gone" in failed["reason"]
    assert caplog.text.count("the kernel is gone") == 1


def test_after_the_decision_eager_runs_from_the_next_step_on(bomb: Bomb) -> None:
    model = agspeed.optimize(mlp(), **FAST, numerics="exact")
    session = session_of(model)
    steps(model, 3)
    assert agspeed.status(model) == "tuned"
    bomb.session = session
    num_steps = _train_until(model, lambda: bomb.has_gone_off)
    assert num_steps == _NTH
    _train(model, 1)
    assert session.plan == "eager" and agspeed.status(model) == "eager"
    assert agspeed.status(model).reason == "aot raised RuntimeError at run time: the kernel is gone"
    found = agspeed.report(model).to_dict()
    assert found["decision"]["chosen"] == "eager" and "the kernel is gone" in found["decision"]["why"]
    assert _plans(model)["aot"]["state"] == "failed"
    assert "the kernel is gone" in str(found["fallbacks"])


def test_failing_step_is_eagers_own(bomb: Bomb) -> None:
    model, expected = agspeed.optimize(mlp(), **FAST, numerics="exact"), mlp()
    steps(model, 3)
    bomb.session = session_of(model)
    steps(model, 6)
    steps(expected, 3)
    steps(expected, 6)
    assert bomb.has_gone_off
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))


def test_failure_among_skipped_steps_is_heeded_at_the_next_forward(bomb: Bomb) -> None:
    model = agspeed.optimize(mlp(), **FAST)
    session = session_of(model)
    steps(model, 60)
    assert session._sampler.is_skipping
    bomb.session = session
    steps(model, _NTH + 1)
    assert session.plan == "eager" and agspeed.status(model) == "eager"


class Shifted(nn.Module):
    """Needs its input for the forward only, so the input may change before the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.shift).tanh()


def test_backward_that_eager_cannot_stand_in_for_passes_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = Bomb()
    _in_backward(monkeypatch, bomb)
    model = agspeed.optimize(Shifted(), **FAST)
    steps(model, 3)
    bomb.session, bomb.calls = session_of(model), _NTH - 1
    x = data(4, 8)
    loss = as_loss(model(x))
    x.add_(1)
    with pytest.raises(RuntimeError, match="the kernel is gone") as caught:
        loss.backward()
    assert any("gradients of this step are incomplete" in note for note in caught.value.__notes__)
    assert agspeed.status(model) == "eager"
    steps(model, 2)


def test_interrupt_in_the_backward_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = Bomb(KeyboardInterrupt())
    _in_backward(monkeypatch, bomb)
    model = agspeed.optimize(mlp(), **FAST)
    steps(model, 3)
    bomb.session, bomb.calls = session_of(model), _NTH - 1
    with pytest.raises(KeyboardInterrupt):
        steps(model, 1)
    steps(model, 2)
    assert agspeed.status(model) == "tuned"


def test_later_processes_do_not_take_a_plan_that_failed(bomb: Bomb, tmp_path: Any) -> None:
    def optimized() -> nn.Module:
        torch._dynamo.reset()
        return agspeed.optimize(mlp(), mode="max", backends=["aot"], cache_dir=tmp_path)

    model = optimized()
    bomb.session = session_of(model)
    _train_until(model, lambda: agspeed.status(model) != "tuning")
    assert bomb.has_gone_off
    again = optimized()
    steps(again, 3)
    assert agspeed.report(again).to_dict()["decision"]["chosen"] == "eager"


def test_strict_raises_and_the_arm_is_out_all_the_same(bomb: Bomb) -> None:
    model = agspeed.optimize(mlp(), **FAST, strict=True)
    steps(model, 3)
    bomb.session, bomb.calls = session_of(model), _NTH - 1
    with pytest.raises(agspeed.AgspeedError, match="aot failed at run time"):
        steps(model, 1)
    steps(model, 1)
    assert agspeed.status(model) == "eager"


def test_gate_sees_a_backward_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Recorder.record

    def record(self: Recorder, role: str, graph: Any, inputs: Sequence[Any], run: Any) -> Any:
        def broken(args: list[Any]) -> Any:
            raise RuntimeError("the kernel is gone")

        return original(self, role, graph, inputs, broken if role == "backward" else run)

    monkeypatch.setattr(Recorder, "record", record)
    model = agspeed.optimize(mlp(), **FAST)
    steps(model)
    assert agspeed.status(model) == "eager"
    refused = _plans(model)["aot"]
    assert refused["state"] == "wrong" and "the kernel is gone" in refused["reason"]


@pytest.fixture
def fuse() -> Any:
    """An operator whose forward or backward kernel raises at the one call that `fuse.at` names."""
    state_of = SimpleNamespace(at={}, calls=Counter())

    def kernel(name: str, x: torch.Tensor) -> torch.Tensor:
        state_of.calls[name] += 1
        if state_of.calls[name] == state_of.at.get(name):
            raise RuntimeError("the kernel is gone")
        return x.clone()

    with torch.library._scoped_library("agspeed_fuse", "DEF") as library:
        for name in ("forward", "backward"):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, functools.partial(kernel, name), "CPU")
            torch.library.register_fake(f"agspeed_fuse::{name}", torch.empty_like, lib=library)
        torch.library.register_autograd(
            "agspeed_fuse::forward",
            lambda ctx, gradient: torch.ops.agspeed_fuse.backward(gradient),
            lib=library,
        )
        yield state_of


class _Fused(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.agspeed_fuse.forward(super().forward(x)).relu()


def _native_with_fuse() -> nn.Module:
    torch.manual_seed(5)
    model = agspeed.optimize(_Fused(nn.Linear(8, 8), nn.Tanh()), mode="deterministic", backends=["native"])
    _train(model, 4)
    assert session_of(model).regions[0].selected == "native", agspeed.report(model)
    return model


def test_native_forward_that_fails_is_repeated_eagerly_and_the_tuner_hears_of_it(fuse: Any) -> None:
    model = _native_with_fuse()
    fuse.at["forward"] = fuse.calls["forward"] + 1
    _train(model, 2)
    torch.manual_seed(5)
    expected = _Fused(nn.Linear(8, 8), nn.Tanh())
    _train(expected, 4)
    _train(expected, 2)
    assert all(torch.allclose(a, b, rtol=1e-5) for a, b in zip(state(model), state(expected), strict=True))
    _assert_native_is_out(model)


def test_native_backward_that_fails_raises_and_the_tuner_hears_of_it(fuse: Any) -> None:
    model = _native_with_fuse()
    fuse.at["backward"] = fuse.calls["backward"] + 1
    with pytest.raises(RuntimeError, match=r"(?s)the kernel is gone.*the gradients of this step are incomplete"):
        _train(model, 1)
    _train(model, 1)
    _assert_native_is_out(model)


def test_native_is_kept_when_the_users_input_is_at_fault() -> None:
    model = agspeed.optimize(
        nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 8), nn.Tanh()), mode="deterministic", backends=["native"]
    )
    for _ in range(4):
        as_loss(model(torch.tensor([1, 3]))).backward()
    with pytest.raises(IndexError):
        model(torch.tensor([1, 9]))
    as_loss(model(torch.tensor([1, 3]))).backward()
    assert session_of(model).regions[0].selected == "native"


def _assert_native_is_out(model: nn.Module) -> None:
    assert agspeed.status(model) == "eager"
    failed = _plans(model)["native"]
    assert failed["state"] == "failed" and "the kernel is gone" in failed["reason"]
