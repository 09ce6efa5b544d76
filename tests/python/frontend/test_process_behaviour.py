# SPDX-License-Identifier: Apache-2.0
"""A model's surroundings in its process: copies, files, threads, forks, torch.compile."""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import tomllib
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import agspeed
from agspeed.frontend.session import session_of
from tests.python.frontend.differential import as_loss, compare, state
from tests.python.support.pairs import first_of
from tests.python.support.small_models import FAST, Linear, data, loop, mlp, steps, tuned

Wrap = Callable[[Any], Any]

# --- copies and files -------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A model at module level, so that it can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def _saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("when", ["while tuning", "tuned"])
@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), _saved_and_loaded],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_copy_is_not_optimized_but_works(duplicate: Callable[[nn.Module], nn.Module], when: str) -> None:
    model = tuned(Net()) if when == "tuned" else agspeed.optimize(Net(), **FAST)
    session = session_of(model)
    other = duplicate(model)
    assert session_of(other) is None and session_of(model) is session
    batch = data(4, 8)
    assert torch.equal(other(batch), model(batch))
    before = state(model)
    steps(other, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, state(model), strict=True)), "the copy shares parameters"
    tuned(other)


@pytest.mark.parametrize("when", ["while tuning", "tuned"])
def test_model_that_is_no_longer_used_is_freed(when: str) -> None:
    model = tuned(Net()) if when == "tuned" else agspeed.optimize(Net(), **FAST)
    steps(model, 1)
    watched = weakref.ref(model)
    del model
    torch._dynamo.reset()
    gc.collect()
    assert watched() is None


def test_state_dict_round_trip_through_a_file() -> None:
    model = tuned(Net())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = Net()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh(data(4, 8)), model(data(4, 8)))


@pytest.mark.parametrize("when", ["while tuning", "tuned"])
def test_optimized_model_is_exported_and_traced(when: str) -> None:
    model = tuned(Net()) if when == "tuned" else agspeed.optimize(Net(), **FAST)
    batch = data(4, 8)
    expected = model(batch)
    program = torch.export.export(model, (batch,))
    assert torch.equal(program.module()(batch), expected)
    assert torch.equal(torch.fx.symbolic_trace(model)(batch), expected)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(batch), expected)
    assert torch.equal(torch.jit.trace(model, (batch,))(batch), expected)


@pytest.mark.parametrize("when", ["while tuning", "tuned"])
def test_function_transforms_of_an_optimized_model(when: str) -> None:
    model = tuned(Net()) if when == "tuned" else agspeed.optimize(Net(), **FAST)
    plain = copy.deepcopy(model)
    batch = data(4, 8)

    def per_sample(module: nn.Module) -> dict[str, torch.Tensor]:
        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return as_loss(torch.func.functional_call(module, parameters, (x.unsqueeze(0),)))

        parameters = {name: value.detach() for name, value in module.named_parameters()}
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, batch)

    expected = per_sample(plain)
    for name, gradient in per_sample(model).items():
        torch.testing.assert_close(gradient, expected[name])


# --- threads and forks ------------------------------------------------------------------------------------------------


def test_forwards_of_other_threads_while_training() -> None:
    model = agspeed.optimize(mlp(), **FAST)
    batch, errors, stop = data(4, 8), [], threading.Event()

    def evaluate() -> None:
        try:
            while not stop.is_set():
                with torch.no_grad():
                    assert model(batch).shape == (4, 4)
                as_loss(model(batch)).detach()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=evaluate) for _ in range(3)]
    for thread in threads:
        thread.start()
    steps(model, 8)
    stop.set()
    for thread in threads:
        thread.join(timeout=300)
    assert not errors, errors
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason
    expected = mlp()
    steps(expected, 8)
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))


def test_training_in_another_thread_than_optimize_runs_as_eager() -> None:
    model, expected = agspeed.optimize(mlp(), **FAST), mlp()
    thread = threading.Thread(target=steps, args=(model, 6))
    thread.start()
    thread.join(timeout=300)
    steps(expected, 6)
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))


class ThroughTheModel(Dataset[torch.Tensor]):
    """A data set whose workers call the optimized model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return self.model(data(8, seed=index)).repeat(2)


@pytest.mark.parametrize("when", ["while tuning", "tuned"])
def test_loader_workers_forked_afterwards(when: str) -> None:
    model = tuned(mlp()) if when == "tuned" else agspeed.optimize(mlp(), **FAST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        ThroughTheModel(model), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=300
    )
    for _ in range(2):
        for batch in loader:  # three batches
            optimizer.zero_grad()
            as_loss(model(batch)).backward()
            optimizer.step()
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason


def test_number_of_threads_changed_while_training() -> None:
    before = torch.get_num_threads()

    def script(wrap: Wrap) -> list[Any]:
        def loss_of(model: nn.Module, step: int) -> torch.Tensor:
            torch.set_num_threads(1 + step % 2)
            return as_loss(model(data(4, 8, seed=step)))

        return loop(wrap, Linear(lambda layer, x: layer(x).relu()), loss_of)

    try:
        assert compare(script, tolerance=1e-6).ran("aot")
    finally:
        torch.set_num_threads(before)


# --- patches are removed ----------------------------------------------------------------------------------------------


def _surroundings() -> dict[str, Any]:
    import torch._inductor.config as inductor_config
    from torch._dynamo import config as dynamo_config
    from torch._functorch import config as functorch_config

    return {
        "dynamo": dynamo_config.get_config_copy(),
        "functorch": functorch_config.get_config_copy(),
        "inductor": inductor_config.get_config_copy(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "default dtype": torch.get_default_dtype(),
        "random": torch.get_rng_state().tolist(),
        "environment": dict(os.environ),
        "precision": torch.get_float32_matmul_precision(),
    }


def _assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, value in before.items():
        if isinstance(value, dict):
            changed = {key: (value.get(key), now) for key, now in after[name].items() if value.get(key) != now}
            assert not changed and value.keys() == after[name].keys(), f"{name}: {changed}"
        assert value == after[name], name


@pytest.mark.slow
@pytest.mark.parametrize("backend", first_of(["native", "torchscript", "aot", "graph-eager"], 2))
def test_settings_and_random_stream_are_as_before(backend: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 4)).eval()
    steps(mlp(), 2)
    before = _surroundings()
    agspeed.optimize(model, mode="deterministic", backends=[backend])
    steps(model)
    _assert_same(before, _surroundings())


@pytest.mark.parametrize("numerics", ["standard", "exact", "off"])
def test_gate_neither_draws_random_numbers_nor_touches_buffers(numerics: str) -> None:
    def script(wrap: Wrap) -> list[Any]:
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.4), nn.Linear(16, 4))
        return loop(wrap, model, lambda m, i: as_loss(m(torch.rand(6, 8))))

    outcome = compare(script, numerics=numerics)
    assert outcome.ran("aot"), outcome.reasons()


# --- torch.compile and a process of its own ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keywords",
    [
        {"options": {"mode": "deterministic", "backends": ["aot"]}},
        {"mode": "off"},
        {"options": {"mode": "deterministic", "backends": ["graph-eager"], "numerics": "exact"}},
    ],
    ids=["aot", "off", "graph-eager"],
)
def test_as_a_backend_of_torch_compile(keywords: dict[str, Any]) -> None:
    from agspeed.frontend import dynamo_backend

    expected = mlp()
    steps(expected, 6)
    model = mlp()
    dynamo_backend._sessions.clear()
    compiled = torch.compile(model, backend="agspeed", **keywords)
    steps(compiled, 6)
    for mine, reference in zip(state(model), state(expected), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-6, atol=1e-6)
    if keywords.get("mode") == "off":
        assert not dynamo_backend._sessions
        return
    (session,) = dynamo_backend._sessions.values()
    (chosen,) = keywords["options"]["backends"]
    assert session.regions[0].selected == chosen
    found = agspeed.report(compiled).to_dict()
    assert (agspeed.status(compiled), found["decision"]["chosen"]) == ("tuned", chosen)
    assert [region["chosen"] for region in found["regions"]] == [chosen]
    session.close()


def test_sessions_end_once_torch_compile_has_dropped_their_graphs() -> None:
    from agspeed.frontend import dynamo_backend

    def train(budget_s: float) -> list[int]:
        options = {"mode": "deterministic", "backends": ["aot"], "budget_s": budget_s}
        model = mlp()
        steps(torch.compile(model, backend="agspeed", options=options), 3)
        models.append(model)
        return [len(session.regions) for session in dynamo_backend._sessions.values()]

    models: list[nn.Module] = []
    dynamo_backend._sessions.clear()
    assert train(1.0) == [1]
    assert train(2.0) == [1, 1], "torch.compile still holds the first graph"
    torch._dynamo.reset()
    gc.collect()
    assert train(3.0) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("first", first_of(["agspeed", "torch._dynamo"], 1))
def test_torch_compile_knows_the_backend_without_an_installed_wheel(first: str) -> None:
    """This holds for every order of imports. Importing agspeed loads no part of torch.compile."""
    script = f"""
import sys, torch
import {first}
import agspeed
assert {first != "agspeed"} or "torch._dynamo" not in sys.modules
assert not any(name.startswith("agspeed.frontend") for name in sys.modules)
model = torch.nn.Linear(3, 2)
print(torch.compile(model, backend="agspeed", mode="off")(torch.ones(1, 3)).shape, torch._dynamo.list_backends())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0 and "[1, 2]" in run.stdout and "'agspeed'" in run.stdout, run.stderr


def test_entry_point_of_the_wheel_names_the_same_backend() -> None:
    from torch._dynamo.backends import registry

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    backend: Any = registry.lookup_backend("agspeed")
    named = f"{backend.__module__}:{backend.__name__}"
    assert named == project["entry-points"]["torch_dynamo_backends"]["agspeed"]


def test_bad_option_of_torch_compile_is_named() -> None:
    with pytest.raises(Exception, match="ludicrous"):  # torch wraps it in BackendCompilerFailed
        torch.compile(mlp(), backend="agspeed", options={"mode": "ludicrous"})(data(4, 8))


@pytest.mark.slow
def test_process_ends_cleanly_in_the_middle_of_tuning(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch, agspeed
            model = agspeed.optimize(torch.nn.Linear(8, 8), backends=["inductor"], report="report.json")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
            print("trained")
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and done.stdout == "trained\n", done.stderr
    assert "Traceback" not in done.stderr and "Error" not in done.stderr, done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["status"]["state"] == "tuning"


@pytest.mark.parametrize(("mode", "source"), [("deterministic", "fixed-order"), ("max", "measured")])
def test_report_says_whether_the_choice_was_timed(mode: str, source: str, tmp_path: Path) -> None:
    model = agspeed.optimize(Net(), mode=mode, backends=["graph-eager"], cache_dir=tmp_path)
    for _ in range(100):
        steps(model, 50)
        if agspeed.status(model) != "tuning":
            break
    assert agspeed.report(model).to_dict()["decision"]["source"] == source


def test_report_says_that_a_plan_was_replayed(tmp_path: Path) -> None:
    keywords: dict[str, Any] = {"mode": "deterministic", "cache_dir": tmp_path}
    first = agspeed.optimize(Net(), backends=["graph-eager"], **keywords)
    steps(first, 5)
    plan = agspeed.report(first).save(tmp_path / "plan.json")
    again = agspeed.optimize(Net(), plan=plan, **keywords)
    steps(again, 5)
    decision = agspeed.report(again).to_dict()["decision"]
    assert (decision["source"], decision["chosen"]) == ("plan-file", "graph-eager")
    assert decision["why"] == "the plan that is replayed asks for it"


def test_strict_takes_other_bits_than_eagers_for_no_fault_under_exact_numerics(tmp_path: Path) -> None:
    keywords: dict[str, Any] = {"mode": "deterministic", "cache_dir": tmp_path, "strict": True, "numerics": "exact"}
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    agspeed.optimize(model, backends=["native", "graph-eager"], **keywords)
    steps(model, 5)
    found = agspeed.report(model).to_dict()
    states = {candidate["name"]: candidate["state"] for candidate in found["regions"][0]["candidates"]}
    assert states == {"native": "wrong", "graph-eager": "chosen"}
