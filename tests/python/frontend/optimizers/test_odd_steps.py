# SPDX-License-Identifier: Apache-2.0
"""Steps at which the fused kernel would compute something else run the plain step, also after the decision."""

from __future__ import annotations

import copy
import io
import threading
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

import agspeed
from agspeed import native
from agspeed.frontend.optimizers.fitness import UNPROVEN
from tests.python.frontend.optimizers.twins import (
    SEED,
    check_fused,
    check_same,
    compare,
    forms,
    found,
    net,
    optimized,
    train,
)

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

Script = tuple[list[Any], list[Optimizer]]


def words(sparse: bool = False) -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Embedding(8, 16, sparse=sparse), nn.Linear(16, 4))


def step(model: nn.Module, optimizer: Any, data: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SGD, Adagrad])
def test_sparse_gradients_after_the_decision(kind: Any) -> None:
    def script(optimize: Any) -> Script:
        model = optimize(words())
        optimizer = kind(model.parameters(), lr=0.01)
        for at in range(9):
            model[0].sparse = at in (4, 5)
            step(model, optimizer, torch.tensor([[1, 2, at % 8]]))
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, True)


def test_sparse_gradients_from_the_first_step_on() -> None:
    def script(optimize: Any) -> Script:
        model = optimize(words(sparse=True))
        optimizer = SGD(model.parameters(), lr=0.01)
        for at in range(18):
            step(model, optimizer, torch.tensor([[1, 2, at % 8]]))
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, False)


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_gradients_in_another_layout(kind: Any) -> None:
    """The fused kernel would add the gradient's elements in the order of its memory."""

    def script(optimize: Any) -> Script:
        model = optimize(net())
        optimizer = kind(model.parameters(), lr=0.01)
        for at in range(9):
            optimizer.zero_grad()
            model(torch.full((4, 8), 0.1 * at)).square().mean().backward()
            if at > 4:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad = parameter.grad.t().contiguous().t()
            optimizer.step()
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, True)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_parameters_that_get_another_layout_while_training(options: Any) -> None:
    def script(optimize: Any) -> Script:
        torch.manual_seed(SEED)
        model = optimize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)))
        optimizer = SGD(model.parameters(), lr=0.01, **options)
        for at in range(9):
            if at == 4:
                model.to(memory_format=torch.channels_last)
            step(model, optimizer, torch.ones(2, 3, 8, 8))
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, True)


def test_parameters_with_gaps_in_their_memory() -> None:
    class Gaps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = torch.zeros(6, 8)
            self.weight = nn.Parameter(self.memory[:, ::2])

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return data @ (self.weight + 1)

    def script(optimize: Any) -> Script:
        model = optimize(Gaps())
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(18):
            step(model, optimizer, torch.ones(4, 6))
        return [model.weight.detach(), model.memory], [optimizer]

    compare(script, False)


def test_a_parameter_that_is_twice_in_a_group() -> None:
    def script(optimize: Any) -> Script:
        model = optimize(net())
        with pytest.warns(UserWarning, match="duplicate parameters"):
            optimizer = AdamW([*model.parameters(), *model.parameters()], lr=0.01)
        train(model, optimizer, 18)
        return [model.state_dict()], [optimizer]

    compare(script, False)


def test_a_parameter_that_gets_its_gradient_in_a_wider_type() -> None:
    def script(optimize: Any) -> Script:
        model = optimize(net().to(torch.bfloat16))
        optimizer = SGD(model.parameters(), lr=0.01)
        for at in range(9):
            optimizer.zero_grad()
            model(torch.full((4, 8), 0.1 * at, dtype=torch.bfloat16)).float().square().mean().backward()
            for parameter in model.parameters():
                parameter.grad_dtype = None
                parameter.grad = None if parameter.grad is None else parameter.grad.float()
            optimizer.step()
        return [model.state_dict()], [optimizer]

    if not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    compare(script, False)


# --- parameters and groups that change --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "options"), [(SGD, {"momentum": 0.9}), (Adam, {}), (Adagrad, {})])
def test_parameters_that_are_frozen_and_melt(kind: Any, options: dict[str, Any]) -> None:
    """SGD's fused kernel raises an error if only some parameters have a momentum."""

    def script(optimize: Any) -> Script:
        model = optimize(net())
        optimizer = kind(model.parameters(), lr=0.01, **options)
        for at in range(12):
            model[0].requires_grad_(4 <= at < 8)
            step(model, optimizer, torch.full((4, 8), 0.1 * at))
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, True)


def test_parameters_that_are_assigned_anew() -> None:
    def script(optimize: Any) -> Script:
        model = optimize(net())
        optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
        for at in range(12):
            if at in (4, 5, 6):
                model[0].weight = nn.Parameter(model[0].weight.detach().clone())
                optimizer.param_groups[0]["params"][0] = model[0].weight
            step(model, optimizer, torch.full((4, 8), 0.1 * at))
        return [model.state_dict()], [optimizer]

    compare(script, True)


def test_a_group_of_another_type_is_added() -> None:
    def script(optimize: Any) -> Script:
        model = optimize(net())
        more = nn.Parameter(torch.ones(4, dtype=torch.float64))
        optimizer = Adam(model.parameters(), lr=0.01)
        for at in range(12):
            if at == 5:
                optimizer.add_param_group({"params": [more]})
            optimizer.zero_grad()
            (model(torch.full((4, 8), 0.1 * at)) * more).square().mean().backward()
            optimizer.step()
        return [model.state_dict(), more.detach(), optimizer.state_dict()], [optimizer]

    compare(script, True)


def test_torchs_default_type_is_double() -> None:
    """The fused step would count its steps in float32."""

    def script(optimize: Any) -> Script:
        torch.set_default_dtype(torch.float64)
        try:
            model = optimize(net())
            optimizer = Adam(model.parameters(), lr=0.01)
            for at in range(12):
                model[0].requires_grad_(at >= 6)
                step(model, optimizer, torch.full((4, 8), 0.1 * at))
        finally:
            torch.set_default_dtype(torch.float32)
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, True)


@pytest.mark.parametrize("flag", ["differentiable", "fused"])
def test_flags_of_a_group_that_the_script_sets_later(flag: str) -> None:
    model = optimized(net())
    optimizer = AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    check_fused(optimizer)
    optimizer.param_groups[0][flag] = True
    train(model, optimizer, 2)
    assert optimizer.param_groups[0][flag] is True
    assert "an option of its groups was changed" in found(optimizer).reason


# --- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SGD, Adam, Adagrad])
def test_checkpoints_hold_the_scripts_own_flags(kind: Any) -> None:
    model, twin = optimized(net()), net()
    optimizer, plain = kind(model.parameters(), lr=0.01), kind(twin.parameters(), lr=0.01)
    for _ in range(3):
        train(model, optimizer)
        train(twin, plain)
        check_same(optimizer.state_dict(), plain.state_dict())
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer.load_state_dict(torch.load(file))
        plain.load_state_dict(copy.deepcopy(plain.state_dict()))
    seen = forms(optimizer)
    train(model, optimizer, 1)
    assert seen == [True]
    check_same(copy.deepcopy(optimizer).state_dict(), optimizer.state_dict(), exact=True)


def test_a_checkpoint_of_a_fused_optimizer_is_loaded_and_keeps_its_step() -> None:
    def script(optimize: Any) -> Script:
        other = net()
        fused = AdamW(other.parameters(), lr=0.01, fused=True)
        train(other, fused)
        model = optimize(net())
        optimizer = AdamW(model.parameters(), lr=0.01)
        train(model, optimizer)
        optimizer.load_state_dict(fused.state_dict())
        train(model, optimizer)
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, True)


def test_states_that_the_script_resets() -> None:
    def script(optimize: Any) -> Script:
        model = optimize(net())
        optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
        for at in range(12):
            if at == 4:
                optimizer.state = defaultdict(dict)
            elif at == 6:
                optimizer.state.pop(model[0].weight)
            elif at == 8:
                optimizer.state[model[2].weight].clear()
            step(model, optimizer, torch.full((4, 8), 0.1 * at))
        return [model.state_dict(), optimizer.state_dict()], [optimizer]

    compare(script, True)


# --- calls of step ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_keyword", [False, True])
def test_closures(is_keyword: bool) -> None:
    def script(optimize: Any) -> Script:
        model = optimize(net())
        optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
        losses = []
        for at in range(9):

            def closure(at: int = at) -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = model(torch.full((4, 8), 0.1 * at)).square().mean()
                loss.backward()
                if at == 6:
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter.grad = parameter.grad.t().contiguous().t()
                return loss

            losses.append((optimizer.step(closure=closure) if is_keyword else optimizer.step(closure)).detach())
        return [model.state_dict(), optimizer.state_dict(), losses], [optimizer]

    compare(script, True)


def test_errors_in_a_step_leave_the_flags_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model = optimized(net())
    optimizer = AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    check_fused(optimizer)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "_fused_adamw_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, 1)
    assert optimizer.state_dict()["param_groups"][0]["fused"] is None
    seen = forms(optimizer)
    train(model, optimizer, 1)
    assert seen == [True]


def test_schedulers_and_scalers() -> None:
    def script(optimize: Any) -> Script:
        model = optimize(net())
        optimizer = AdamW(model.parameters(), lr=0.01)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        for at in range(12):
            optimizer.zero_grad()
            data = torch.full((4, 8), float("inf") if at == 6 else 0.1 * at)
            scaler.scale(model(data).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            cycle.step()
        return [model.state_dict(), optimizer.state_dict(), cycle.state_dict(), scaler.state_dict()], [optimizer]

    compare(script, True)


@pytest.mark.thorough
def test_a_compiled_step_of_an_optimizer() -> None:
    def script(optimize: Any) -> Script:
        torch._dynamo.reset()
        model = optimize(net())
        optimizer = SGD(model.parameters(), lr=0.01)
        train(model, optimizer)

        @torch.compile(backend="eager")
        def compiled() -> None:
            optimizer.step()

        for at in range(4):
            optimizer.zero_grad()
            model(torch.full((4, 8), 0.1 * at)).square().mean().backward()
            compiled()
        return [model.state_dict()], [optimizer]

    compare(script, True)


def test_paused_and_steps_on_other_threads_run_the_plain_step() -> None:
    model = optimized(net())
    optimizer = AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    seen = forms(optimizer)
    with agspeed.paused():
        train(model, optimizer, 1)
    thread = threading.Thread(target=train, args=(model, optimizer, 1))
    thread.start()
    thread.join()
    train(model, optimizer, 1)
    assert seen == [False, False, True]


def test_options_that_the_script_changes_are_compared_first() -> None:
    """The gate has compared the steps without weight decay only."""
    model = optimized(net())
    optimizer = Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 4)
    assert found(optimizer).chosen == "fused", found(optimizer).reason
    fitness = found(optimizer)._fitness
    model(torch.ones(4, 8)).square().mean().backward()
    assert fitness.why_not_now(optimizer) is None
    optimizer.param_groups[0]["weight_decay"] = 0.1
    assert fitness.why_not_now(optimizer) == UNPROVEN
