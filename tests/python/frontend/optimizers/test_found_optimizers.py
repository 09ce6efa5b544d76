# SPDX-License-Identifier: Apache-2.0
"""After optimize(model), the optimizers of the model are found, and train to the weights of their plain steps."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.testing._internal.distributed.fake_pg import FakeStore

import agspeed
from agspeed import native
from agspeed.frontend.optimizers import search
from agspeed.frontend.optimizers import session as tuning
from agspeed.frontend.optimizers.search import SEARCH
from agspeed.frontend.optimizers.session import OptimizerSession, optimizer_session
from agspeed.frontend.steps import StepClock, StepTimes
from tests.python.frontend.optimizers.twins import (
    SEED,
    check_fused,
    compare,
    forms,
    found,
    net,
    optimized,
    train,
)
from tests.python.support.pairs import thorough

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

FUSED = {"SGD", "Adam", "AdamW", "Adagrad"}
KINDS = [
    kind
    for name, kind in sorted(vars(torch.optim).items())
    if inspect.isclass(kind) and issubclass(kind, Optimizer) and name not in ("Optimizer", "LBFGS", "SparseAdam")
]
VARIANTS = [
    (SGD, {}),
    (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (SGD, {"momentum": 0.9, "dampening": 0.1, "maximize": True}),
    (Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (Adam, {"lr": torch.tensor(0.01)}),
    (AdamW, {"foreach": True}),
    (AdamW, {"betas": (0.5, 0.9), "maximize": True}),
    (Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1}),
]


# --- each optimizer of torch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_100_steps_reach_the_weights_and_the_state_of_the_plain_step(kind: Any) -> None:
    def script(optimize: Any) -> tuple[list[Any], list[Optimizer]]:
        model = optimize(net())
        optimizer = kind(model.parameters(), lr=0.01)
        train(model, optimizer, 100)
        if optimizer_session(optimizer) is not None:
            wanted = "torch has no fused step for" if kind.__name__ not in FUSED else "the first candidate"
            assert found(optimizer).reason.startswith(wanted)
            assert agspeed.status(model).optimizers[0].startswith(f"{kind.__name__} runs ")
            assert f"{kind.__name__} runs " in str(agspeed.status(model))
            assert f"{kind.__name__} runs " in " ".join(str(agspeed.report(model)).split())
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, kind.__name__ in FUSED)


@pytest.mark.parametrize("dtype", [torch.float32, thorough(torch.float64), thorough(torch.bfloat16)])
@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_options_of_fused_optimizers(kind: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    def script(optimize: Any) -> tuple[list[Any], list[Optimizer]]:
        model = optimize(net().to(dtype))
        optimizer = kind(model.parameters(), **{"lr": 0.01, **copy.deepcopy(options)})
        data = torch.Generator().manual_seed(SEED)
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(4, 8, generator=data).to(dtype)).square().mean().backward()
            optimizer.step()
        states = [model.state_dict(), optimizer.state_dict()]
        if dtype == torch.bfloat16:  # rounding errors of the two forms differ too much after some steps
            states = [{key: tuple(value.shape) for key, value in states[0].items()}]
        return states, [optimizer]

    compare(script, True)


def test_options_that_choose_another_code_are_compared_before_they_are_fused() -> None:
    def script(optimize: Any) -> tuple[list[Any], list[Optimizer]]:
        model = optimize(net())
        optimizer = AdamW(list(model.parameters())[:1], lr=0.01)
        train(model, optimizer)
        optimizer.add_param_group({"params": list(model.parameters())[1:], "maximize": True})
        seen = forms(optimizer)
        train(model, optimizer)
        if optimizer_session(optimizer) is not None:
            assert seen == [False, True, True, True, True, True], found(optimizer).reason
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, True)


# --- how optimizers are found -----------------------------------------------------------------------------------------


def test_an_optimizer_that_was_made_before_the_call_is_found() -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, 2)
    optimized(model)
    train(model, optimizer)
    check_fused(optimizer)


def test_optimizers_of_other_models_are_left_alone() -> None:
    model, other = optimized(net()), net()
    foreign = AdamW(other.parameters())
    train(other, foreign)
    assert optimizer_session(foreign) is None
    assert not foreign._optimizer_step_pre_hooks and not foreign._optimizer_step_post_hooks
    assert agspeed.status(model).optimizers == ()
    foreign.add_param_group({"params": list(model.parameters())})
    train(other, foreign)
    check_fused(foreign)


def test_two_models_with_an_optimizer_each_and_two_optimizers_for_one_model() -> None:
    def script(optimize: Any) -> tuple[list[Any], list[Optimizer]]:
        generator, critic = optimize(net()), optimize(net())
        optimizers: list[Optimizer] = [
            AdamW(generator.parameters(), lr=0.01),
            SGD(list(critic.parameters())[:1], lr=0.01, momentum=0.9),
            RMSprop(list(critic.parameters())[1:], lr=0.01),
        ]
        for _ in range(6):
            for model, mine in ((generator, optimizers[:1]), (critic, optimizers[1:])):
                for optimizer in mine:
                    optimizer.zero_grad()
                model(torch.ones(4, 8)).square().mean().backward()
                for optimizer in mine:
                    optimizer.step()
        return [generator.state_dict(), critic.state_dict(), *(each.state_dict() for each in optimizers)], optimizers

    compare(script, True, True, False)


def test_an_optimizer_of_two_models_is_restored_with_the_last_one() -> None:
    first, second = optimized(net()), optimized(net())
    optimizer = AdamW([*first.parameters(), *second.parameters()], lr=0.01)
    train(nn.Sequential(first, nn.Linear(4, 8, bias=False), second), optimizer)
    check_fused(optimizer)
    assert agspeed.status(first).optimizers == agspeed.status(second).optimizers != ()
    agspeed.restore(first)
    seen = forms(optimizer)
    train(second, optimizer, 1)
    agspeed.restore(second)
    train(second, optimizer, 1)
    assert seen == [True, False]


def test_restore_leaves_no_hook_behind_and_a_new_call_finds_the_optimizer_again() -> None:
    hooks = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    before = [dict(each) for each in hooks]
    model = optimized(net())
    optimizer = AdamW(model.parameters())
    train(model, optimizer)
    check_fused(optimizer)
    agspeed.restore(model)
    assert [dict(each) for each in hooks] == before
    assert optimizer_session(optimizer) is None and not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks and not optimizer._optimizer_state_dict_pre_hooks
    optimized(model)
    train(model, optimizer)
    check_fused(optimizer)


def timed_steps(model: nn.Module) -> tuple[StepClock, list[StepTimes]]:
    """Returns a clock of a model, and the list of the steps that it times."""
    ended: list[StepTimes] = []
    clock = StepClock(model.parameters, ended.append)
    model.register_forward_pre_hook(lambda *_: clock.forward_begins())
    return clock, ended


def test_clocks_come_and_go_among_other_process_wide_hooks() -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    clock, ended = timed_steps(model)
    clock.start()
    other = optimized(net())  # registers a hook after the clock's hooks
    clock.stop()
    clock.start()
    train(model, optimizer, 3)
    agspeed.restore(other)
    train(model, optimizer, 3)
    clock.stop()
    assert len(ended) == 6


def test_the_setting_switches_the_search_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGSPEED_TUNE_OPTIMIZER", "off")
    model = optimized(net())
    optimizer, passed = AdamW(model.parameters()), AdamW(model.parameters())
    train(model, optimizer)
    assert optimizer_session(optimizer) is None and agspeed.status(model).optimizers == ()
    optimized(model, optimizer=passed)
    train(model, passed)
    check_fused(passed)


@pytest.mark.parametrize(
    ("reason", "settings", "options"),
    [
        ('numerics="exact" keeps the plain step', {"numerics": "exact"}, {}),
        ("it was made with fused=False", {}, {"fused": False}),
        ("its step is fused already", {}, {"fused": True}),
    ],
)
def test_optimizers_that_keep_their_step(reason: str, settings: Any, options: Any) -> None:
    model = optimized(net(), **settings)
    optimizer = SGD(model.parameters(), lr=0.01, **options)
    train(model, optimizer, 3)
    assert found(optimizer).reason.startswith(reason) and found(optimizer).chosen == "eager"
    assert reason in agspeed.status(model).optimizers[0]
    assert agspeed.report(model).to_dict()["optimizers"][0]["gate"] is None


def test_the_mode_deterministic_keeps_the_bits_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_PLAIN_MODES", frozenset({"deterministic"}))
    model = optimized(net())
    optimizer = SGD(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    assert found(optimizer).chosen == "eager" and found(optimizer).reason.startswith('mode="deterministic" fuses')


def test_the_mode_deterministic_fuses_an_optimizer_that_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_PLAIN_MODES", frozenset({"deterministic"}))
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    agspeed.optimize(model, optimizer, mode="deterministic", backends=["eager"])
    train(model, optimizer, 3)
    assert found(optimizer).chosen == "fused", found(optimizer).reason


@pytest.mark.parametrize("flag", ["capturable", "differentiable"])
def test_optimizers_with_flags_for_graphs_keep_their_step(flag: str) -> None:
    model = optimized(net())
    optimizer = SGD(model.parameters(), lr=0.01)
    optimizer.param_groups[0][flag] = True
    train(model, optimizer, 3)
    assert found(optimizer).reason.startswith("differentiable and capturable") and found(optimizer).chosen == "eager"


def test_an_optimizer_inside_of_another_ones_wrapper() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, wrapper = accelerator.prepare(net(), AdamW(net().parameters(), lr=0.01))
    wrapper.optimizer = AdamW(model.parameters(), lr=0.01)
    optimized(model, optimizer=wrapper)
    train(model, wrapper)
    assert found(wrapper).reason == "torch has no fused step for AcceleratedOptimizer"
    check_fused(wrapper.optimizer)


def test_a_class_with_a_step_of_its_own_keeps_it() -> None:
    class Clipped(AdamW):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                nn.utils.clip_grad_norm_(group["params"], 0.1)
            return super().step(closure)

    def script(optimize: Any) -> tuple[list[Any], list[Optimizer]]:
        model = optimize(net())
        optimizer = Clipped(model.parameters(), lr=0.01)
        train(model, optimizer)
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, False)


def test_optimizers_that_step_inside_of_a_backward_keep_their_step() -> None:
    def script(optimize: Any) -> tuple[list[Any], list[Optimizer]]:
        model = optimize(net())
        optimizers = {parameter: AdamW([parameter], lr=0.01) for parameter in model.parameters()}

        def step(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(4):
            model(torch.ones(4, 8)).square().mean().backward()
        return [model.state_dict()], list(optimizers.values())

    compare(script, False, False)


def test_no_more_than_some_optimizers_of_a_model_are_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MOST", 2)
    model = optimized(net())
    optimizers = [AdamW(model.parameters()) for _ in range(5)]
    for optimizer in optimizers:
        train(model, optimizer, 2)
    assert [optimizer_session(each) is not None for each in optimizers] == 3 * [True] + 2 * [False]
    assert found(optimizers[1]).chosen == "fused" and "no more are tuned" in found(optimizers[2]).reason


def test_a_wrong_fused_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch._fused_adamw_

    def wrong(*args: Any, lr: Any, **kwargs: Any) -> None:
        right(*args, lr=1.01 * lr, **kwargs)

    monkeypatch.setattr(torch, "_fused_adamw_", wrong)

    def script(optimize: Any) -> tuple[list[Any], list[Optimizer]]:
        model = optimize(net())
        optimizer = AdamW(model.parameters(), lr=0.01)
        train(model, optimizer)
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, False)


@pytest.mark.parametrize("is_busy", [True, False])
def test_the_form_of_the_step_stays_while_steps_are_compared(is_busy: bool) -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    session = OptimizerSession(optimizer, agspeed.config.resolve({"mode": "max"}), is_busy=lambda: is_busy)
    seen = forms(optimizer)
    train(model, optimizer, 300)
    session.close()
    assert any(seen) is not is_busy, session.reason


def test_the_search_is_busy_while_a_session_changes_its_plan() -> None:
    assert not SEARCH._is_busy()
    model = agspeed.optimize(net(), mode="max", backends=["aot"])
    optimizer = AdamW(model.parameters())
    train(model, optimizer, 3)
    assert SEARCH._is_busy() and found(optimizer).chosen == "eager"
    agspeed.restore(model)
    assert not SEARCH._is_busy()


def test_the_time_of_the_check_is_no_part_of_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    check = tuning.check_fused
    moments = iter(range(10**9))

    def slow(*args: Any) -> Any:
        for _ in range(10**6):
            next(moments)
        return check(*args)

    monkeypatch.setattr(tuning, "check_fused", slow)
    model = optimized(net())
    optimizer = AdamW(model.parameters())
    clock, ended = timed_steps(model)
    clock.start()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(moments)))
    train(model, optimizer, 3)
    clock.stop()
    check_fused(optimizer)
    assert len(ended) == 3 and max(times.busy for times in ended) < 10**6


def fake_ranks() -> None:
    """Makes this process rank 0 of four. The other ranks are simulated."""
    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())


def test_the_plain_step_runs_among_ranks() -> None:
    def script(optimize: Any) -> tuple[list[Any], list[Optimizer]]:
        fake_ranks()
        try:
            model = optimize(net())
            optimizer = AdamW(model.parameters(), lr=0.01)
            train(model, optimizer)
        finally:
            distributed.destroy_process_group()
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, False)
