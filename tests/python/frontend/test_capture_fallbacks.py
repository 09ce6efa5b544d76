# SPDX-License-Identifier: Apache-2.0
"""Models that capture cannot take whole: graph breaks, hooks, changing sizes. Results equal eager's; reasons are
kept."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from tests.python.frontend.differential import Outcome, as_loss, compare, state
from tests.python.support.pairs import pairs
from tests.python.support.small_models import STEPS, Linear, data, loop

Wrap = Callable[[Any], Any]
Script = Callable[[Wrap], list[Any]]

_MAX_REGIONS = 10
"""The most regions for a model of one captured frame: Dynamo's recompile limit of 8, and a few at the start."""


def breaks(outcome: Outcome) -> list[tuple[str, str]]:
    return [key for session in outcome.sessions for key in session.history.breaks]


# --- graph breaks -----------------------------------------------------------------------------------------------------


def with_print(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = layer(x).relu()
        print("hidden has", tuple(hidden.shape))
        return layer(hidden)

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        values = loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i))))
    return [*values, printed.getvalue()]


def with_item(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = layer(x).relu()
        return layer(hidden) * (1.0 + hidden.detach().max().item())

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i))))


def with_data_dependent_branch(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = layer(x)
        if hidden.mean() > 0:  # noqa: SIM108 (a statement, as users write it)
            hidden = hidden.relu()
        else:
            hidden = hidden.sigmoid()
        return layer(hidden)

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i) * (-1) ** i)))


def with_numpy(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = layer(x).relu()
        share = float((hidden.detach().numpy() > 0).mean())
        return layer(hidden) * share

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i))))


@pytest.mark.parametrize(
    "script", [with_print, with_item, with_data_dependent_branch, with_numpy], ids=lambda s: s.__name__
)
def test_graph_break_splits_into_compiled_regions(script: Script) -> None:
    outcome = compare(script, tolerance=1e-6)
    assert outcome.ran("aot"), outcome.reasons()
    found = breaks(outcome)
    assert found, "no graph break was recorded"
    assert any(__file__.split("/")[-1] in where for where, _ in found), found


def disabled_part(wrap: Wrap) -> list[Any]:
    @torch.compiler.disable
    def untraceable(x: torch.Tensor) -> torch.Tensor:
        return x * float(torch.tensor(2.0))

    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(untraceable(layer(x).relu()))

    return loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i))))


def test_part_marked_as_not_to_be_traced_stays_eager() -> None:
    outcome = compare(disabled_part, tolerance=1e-6)
    assert outcome.ran("aot") and breaks(outcome), outcome.reasons()


def no_tensor_operators(wrap: Wrap) -> list[Any]:
    @torch.compiler.disable
    def everything(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    return loop(wrap, Linear(everything), lambda m, i: as_loss(m(data(4, 8, seed=i))))


def test_model_without_anything_to_capture_stays_eager_with_the_reason() -> None:
    outcome = compare(no_tensor_operators)
    assert not outcome.ran("aot")
    assert outcome.sessions[0].state == "eager"
    assert any("no part of the model could be captured" in reason for reason in outcome.reasons()), outcome.reasons()


# --- hooks ------------------------------------------------------------------------------------------------------------

Install = Callable[[nn.Module, list[Any]], Any]


def _forward_pre(model: nn.Module, seen: list[Any]) -> Any:
    return model.register_forward_pre_hook(lambda m, args: (args[0] * 2,))


def _forward(model: nn.Module, seen: list[Any]) -> Any:
    return model.register_forward_hook(lambda m, args, out: out + 1)


def _forward_with_kwargs(model: nn.Module, seen: list[Any]) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any, out: torch.Tensor) -> torch.Tensor:
        return out * (1 + len(kwargs))

    return model.register_forward_hook(hook, with_kwargs=True)


def _inner_forward(model: nn.Module, seen: list[Any]) -> Any:
    return model.layer.register_forward_hook(lambda m, args, out: out * 3)


def _observing_forward(model: nn.Module, seen: list[Any]) -> Any:
    return model.layer.register_forward_hook(lambda m, args, out: seen.append(out.detach().clone()))


def _full_backward(model: nn.Module, seen: list[Any]) -> Any:
    return model.register_full_backward_hook(lambda m, gin, gout: seen.append(gout[0].clone()))


def _full_backward_pre(model: nn.Module, seen: list[Any]) -> Any:
    return model.register_full_backward_pre_hook(lambda m, gout: (gout[0] * 0.5,))


def _inner_full_backward(model: nn.Module, seen: list[Any]) -> Any:
    return model.layer.register_full_backward_hook(lambda m, gin, gout: seen.append(gout[0].clone()))


def _parameter_hook(model: nn.Module, seen: list[Any]) -> Any:
    return model.layer.weight.register_hook(lambda grad: grad * 0.25)


def _post_accumulate(model: nn.Module, seen: list[Any]) -> Any:
    return model.layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))


HOOKS: list[Install] = [
    _forward_pre,
    _forward,
    _forward_with_kwargs,
    _inner_forward,
    _observing_forward,
    _full_backward,
    _full_backward_pre,
    _inner_full_backward,
    _parameter_hook,
    _post_accumulate,
]


def hooked(install: Install, at_step: int, steps: int = 9) -> Script:
    """Trains with a hook that is installed before step `at_step` and removed two steps before the end."""

    def script(wrap: Wrap) -> list[Any]:
        seen: list[Any] = []
        model = wrap(Linear(lambda layer, x: layer(x).relu()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        handle, losses = None, []
        for step in range(steps):
            if step == at_step:
                handle = install(model, seen)
            if step == steps - 2:
                handle.remove()
            optimizer.zero_grad()
            loss = as_loss(model(data(4, 8, seed=step)))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, len(seen), *seen, *state(model)]

    return script


@pytest.mark.parametrize(("install", "at_step"), pairs(HOOKS, [0, 5]))  # from the start, or after tuning
def test_hook_is_honoured(install: Install, at_step: int) -> None:
    outcome = compare(hooked(install, at_step), tolerance=1e-6)
    assert outcome.ran("aot"), outcome.reasons()


def tensor_hook_in_forward(wrap: Wrap) -> list[Any]:
    seen: list[Any] = []

    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = layer(x)
        hidden.register_hook(lambda grad: grad * 0.5)
        return layer(hidden.relu())

    return [*loop(wrap, Linear(body), lambda m, i: as_loss(m(data(4, 8, seed=i)))), *seen]


def tensor_hook_on_the_output(wrap: Wrap) -> list[Any]:
    seen: list[Any] = []

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        out = model(data(4, 8, seed=step))
        out.register_hook(lambda grad: seen.append(grad.clone()))
        out.retain_grad()
        return as_loss(out)

    return [*loop(wrap, Linear(lambda layer, x: layer(x).relu()), loss_of), *seen]


def saved_tensor_hooks(wrap: Wrap) -> list[Any]:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            return as_loss(model(data(4, 8, seed=step)))

    return loop(wrap, Linear(lambda layer, x: layer(x).relu()), loss_of)


def offloaded_to_disk_like(wrap: Wrap) -> list[Any]:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return as_loss(model(data(4, 8, seed=step)))

    return loop(wrap, Linear(lambda layer, x: layer(x).tanh()), loss_of)


def global_forward_hook(wrap: Wrap) -> list[Any]:
    calls: list[str] = []
    model = wrap(Linear(lambda layer, x: layer(x).relu()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        with contextlib.ExitStack() as stack:
            if step == 6:
                handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
                stack.callback(handle.remove)
            optimizer.zero_grad()
            as_loss(model(data(4, 8, seed=step))).backward()
            optimizer.step()
    return [*calls, *state(model)]


@pytest.mark.parametrize(
    "script",
    [
        tensor_hook_in_forward,
        tensor_hook_on_the_output,
        saved_tensor_hooks,
        offloaded_to_disk_like,
        global_forward_hook,
    ],
    ids=lambda s: s.__name__,
)
def test_tensor_and_global_hooks_are_honoured(script: Script) -> None:
    outcome = compare(script, tolerance=1e-6)
    assert outcome.ran("aot"), outcome.reasons()


def state_dict_hooks(wrap: Wrap) -> list[Any]:
    model = Linear(lambda layer, x: layer(x))
    model.register_state_dict_post_hook(lambda m, sd, prefix, meta: sd.__setitem__(prefix + "extra", torch.ones(1)))
    model.register_load_state_dict_pre_hook(lambda m, sd, prefix, *rest: sd.pop(prefix + "extra", None))
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = []
    for step in range(STEPS):
        optimizer.zero_grad()
        as_loss(model(data(4, 8, seed=step))).backward()
        optimizer.step()
        saved = model.state_dict()
        names.append(list(saved))
        model.load_state_dict(saved)
    return [names, *state(model)]


def test_state_dict_hooks_run() -> None:
    outcome = compare(state_dict_hooks)
    assert outcome.ran("aot"), outcome.reasons()


# --- sizes that change ------------------------------------------------------------------------------------------------


def changing_sizes(shapes: list[tuple[int, ...]]) -> Script:
    def script(wrap: Wrap) -> list[Any]:
        model = wrap(Linear(lambda layer, x: layer(x).relu()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step, shape in enumerate(shapes):
            optimizer.zero_grad()
            loss = as_loss(model(data(*shape, seed=step)))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *state(model)]

    return script


SIZES = {
    "batch": [(batch, 8) for batch in (4, 4, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)],
    "last batch is smaller": [(8, 8), (8, 8), (8, 8), (3, 8)] * 4,
    "batch and length": [(2 + i % 3, 5 + i, 8) for i in range(16)],
    "rank": [(4, 8), (4, 8), (4, 8), (4, 8), (2, 4, 8), (2, 2, 4, 8), (8,), (3, 8), (2, 5, 8), (1, 8)],
}


@pytest.mark.parametrize("name", SIZES)
def test_changing_sizes_cost_a_bounded_number_of_regions(name: str) -> None:
    outcome = compare(changing_sizes(SIZES[name]), tolerance=1e-6)
    assert outcome.ran("aot"), outcome.reasons()
    count = len(outcome.sessions[0].regions)
    assert count <= _MAX_REGIONS, f"{count} regions for {SIZES[name]}"


def test_sizes_that_vary_become_symbolic() -> None:
    outcome = compare(changing_sizes(SIZES["batch"]), tolerance=1e-6)
    assert len(outcome.sessions[0].regions) <= 3, "a region per batch size"


def endless_variants(wrap: Wrap) -> list[Any]:
    def body(layer: nn.Module, x: torch.Tensor, tag: str) -> torch.Tensor:
        return layer(x) * len(tag)

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        return as_loss(model(data(4, 8, seed=step), "x" * (1 + step)))

    model = wrap(Linear(body))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(20):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return state(model)


def test_endless_recompiles_end_in_eager_and_are_reported() -> None:
    outcome = compare(endless_variants, tolerance=1e-6)
    session = outcome.sessions[0]
    assert len(session.regions) <= _MAX_REGIONS
    assert sum(session.history.recompiles.values()) > 3
    where, reason = next(iter(session.history.recompiles))
    assert __file__.endswith(where.rpartition(":")[0]) and reason == "args[1] == 'x'"
    assert any("recompile limit" in reason and where for where, reason in session.history.fallbacks)
    assert outcome.ran("aot"), "what was captured stays; further variants run eagerly"


def frozen_dynamic(wrap: Wrap) -> list[Any]:
    return changing_sizes(SIZES["batch"])(wrap)


@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_keyword_is_passed_on(dynamic: bool) -> None:
    outcome = compare(frozen_dynamic, tolerance=1e-6, dynamic=dynamic)
    assert outcome.ran("aot"), outcome.reasons()
    inputs = outcome.sessions[0].regions[0].example_inputs
    assert any(isinstance(value, torch.SymInt) for value in inputs) == dynamic


def test_a_graph_of_library_code_is_placed_where_the_users_code_calls_it() -> None:
    model = agspeed.optimize(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), mode="deterministic", backends=["graph-eager"])
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
    [region] = agspeed.report(model).to_dict()["regions"]
    assert region["location"]["file"] == __file__, region
    agspeed.restore(model)
