# SPDX-License-Identifier: Apache-2.0
"""Wrong input gives one clear sentence and changes nothing. The user's own exceptions pass through unchanged."""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.checkpoint import checkpoint

import agspeed
from agspeed.frontend.dynamo_backend import agspeed_backend
from agspeed.frontend.session import session_of
from tests.python.frontend.differential import as_loss, state
from tests.python.support.small_models import FAST, Linear, data, mlp, steps, tuned

# --- bad input --------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "class instead of instance": (lambda: nn.Linear, {}, "the class Linear: pass an instance"),
    "not callable": (lambda: 3, {}, "an nn.Module or a step function, got int 3"),
    "string": (lambda: "model", {}, "got str 'model'"),
    "unknown backend": (mlp, {"backends": ["warp-drive"]}, "nknown backend 'warp-drive'"),
    "backend misspelt": (mlp, {"backends": ["indcutor"]}, "inductor"),
    "backends not a list": (mlp, {"backends": 3}, "backends"),
    "unknown mode": (mlp, {"mode": "ludicrous"}, "mode"),
    "mode of a wrong type": (mlp, {"mode": 3}, "mode"),
    "unknown numerics": (mlp, {"numerics": "loose"}, "numerics"),
    "negative budget": (mlp, {"budget_s": -1.0}, "budget_s"),
    "budget not a number": (mlp, {"budget_s": "soon"}, "budget_s"),
    "dynamic of a wrong type": (mlp, {"dynamic": "maybe"}, "dynamic"),
    "strict of a wrong type": (mlp, {"strict": "very"}, "strict"),
    "plan that is missing": (mlp, {"plan": "nowhere/plan.json"}, "nowhere/plan.json"),
    "report with a wrong ending": (mlp, {"report": "report.docx"}, "report.docx"),
}


WRONG_TYPES = {
    # keep-sorted
    "backends not a list",
    "budget not a number",
    "class instead of instance",
    "dynamic of a wrong type",
    "mode of a wrong type",
    "not callable",
    "strict of a wrong type",
    "string",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_changes_nothing(name: str) -> None:
    make, keywords, expected = BAD[name]
    target = make()
    before = dict(vars(target)) if isinstance(target, nn.Module) else None
    with pytest.raises(agspeed.UserError) as caught:
        agspeed.optimize(target, **keywords)
    message = str(caught.value)
    assert expected in message
    assert isinstance(caught.value, TypeError) is (name in WRONG_TYPES)
    assert "\n" not in message.strip() and len(message) < 400, message
    assert before is None or vars(target) == before


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, "sgd", 0.1], ids=["class", "string", "number"])
def test_wrong_optimizer_is_refused(optimizer: Any) -> None:
    model = mlp()
    with pytest.raises(agspeed.UserError, match=r"optimizer must be a torch\.optim\.Optimizer"):
        agspeed.optimize(model, optimizer)
    assert session_of(model) is None


def test_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="speed"):
        agspeed.optimize(mlp(), speed="high")


@pytest.mark.parametrize("keyword", ["cache_dir", "report"])
def test_path_that_cannot_be_written_is_refused(keyword: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / "file" / ("cache" if keyword == "cache_dir" else "report.json")
    model = mlp()
    with pytest.raises(agspeed.UserError, match=str(tmp_path)):
        agspeed.optimize(model, **{keyword: str(path)})
    assert session_of(model) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mode = ", "agspeed.toml"),
        ('mode = "ludicrous"', "ludicrous"),
        ('moed = "auto"', "moed"),
        ("strict = 3", "strict"),
    ],
)
def test_invalid_settings_file_is_named(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agspeed.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    model = mlp()
    with pytest.raises(agspeed.UserError) as caught:
        agspeed.optimize(model)
    assert expected in str(caught.value) and "agspeed.toml" in str(caught.value)
    assert session_of(model) is None


def test_invalid_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGSPEED_MODE", "ludicrous")
    with pytest.raises(agspeed.UserError, match="AGSPEED_MODE"):
        agspeed.optimize(mlp())


def test_report_of_a_model_that_was_never_optimized_is_refused() -> None:
    with pytest.raises(agspeed.UserError, match="is not optimized"):
        agspeed.report(mlp())
    assert agspeed.status(mlp()) == "eager" and agspeed.restore(model := mlp()) is model


@pytest.mark.parametrize("variable", ["AGSPEED_DISABLE=1", "AGSPEED_MODE=off"])
@pytest.mark.parametrize("target", ["model", "function"])
def test_a_program_that_asks_for_a_report_also_runs_where_agspeed_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, variable: str, target: str
) -> None:
    monkeypatch.setenv(*variable.split("="))
    made = agspeed.optimize(mlp() if target == "model" else (lambda x: x))
    assert agspeed.status(made) == agspeed.wait(made) == "eager"
    text = str(agspeed.report(made))
    assert "agspeed is switched off" in text and variable.split("=")[0] in text


def test_objects_that_cannot_be_remembered_have_a_status_and_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Step:
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    for target in (5, "text", step := Step()):
        assert agspeed.status(target).reason == "not optimized"
        with pytest.raises(agspeed.UserError, match="is not optimized"):
            agspeed.report(target)
    monkeypatch.setenv("AGSPEED_DISABLE", "1")
    assert agspeed.optimize(step) is step


def test_forgotten_return_and_mode_as_an_argument_are_explained() -> None:
    with pytest.raises(agspeed.UserError, match="got None"):
        agspeed.optimize()(None)
    with pytest.raises(agspeed.UserError, match="mode='max'"):
        agspeed.optimize(mlp(), "max")


def test_plans_that_cannot_be_replayed_are_refused_at_once(tmp_path: Path) -> None:
    model, plan = mlp(), tmp_path / "plan.json"
    plan.write_text("{}")
    with pytest.raises(agspeed.UserError, match="report"):
        agspeed.optimize(model, mode="deterministic", plan=plan)
    tuning = agspeed.optimize(mlp(), mode="auto", cache_dir=tmp_path)
    agspeed.report(tuning).save(plan)
    with pytest.raises(agspeed.UserError, match="still tuning"):
        agspeed.optimize(model, mode="deterministic", plan=plan)
    with pytest.raises(agspeed.UserError, match="in mode='deterministic' only"):
        agspeed.optimize(model, mode="max", plan=plan)
    data = agspeed.report(tuning).to_dict()
    data["status"]["state"], data["decision"]["chosen"] = "tuned", "mycompiler"
    plan.write_text(json.dumps(data))
    with pytest.raises(agspeed.UserError, match="mycompiler"):
        agspeed.optimize(model, mode="deterministic", plan=plan)
    data["decision"]["chosen"] = "aot+rX:aot"
    for broken in (json.dumps(data), json.dumps(data | {"regions": 7}), "[" * 200_000, '{"kind":"agspeed.report"}'):
        plan.write_text(broken)
        with pytest.raises(agspeed.UserError, match="report"):
            agspeed.optimize(model, mode="deterministic", plan=plan)
    assert session_of(model) is None


def test_a_report_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sub" / "report.json"
    agspeed.report(agspeed.optimize(mlp(), cache_dir=tmp_path)).save(path)
    assert json.loads(path.read_text())["kind"] == "agspeed.report"


def test_model_without_parameters_stays_as_it_is() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Flatten())
    assert agspeed.optimize(model) is model and session_of(model) is None
    assert "no parameters" in str(agspeed.report(model))
    assert torch.equal(model(torch.ones(2, 2)), torch.ones(2, 2))


def test_model_with_all_parameters_frozen_runs() -> None:
    model = agspeed.optimize(mlp().requires_grad_(False), **FAST)
    assert model(data(4, 8)).shape == (4, 4)


@pytest.mark.parametrize("how", ["wrapper", "in place"])
def test_compiled_model_is_left_alone_with_a_note(how: str, caplog: pytest.LogCaptureFixture) -> None:
    inner = mlp()
    if how == "wrapper":
        model = torch.compile(inner, backend="eager")
    else:
        inner.compile(backend="eager")
        model = inner
    slot = inner._compiled_call_impl
    assert agspeed.optimize(model) is model
    assert "already compiled by torch.compile" in caplog.text
    assert inner._compiled_call_impl is slot
    steps(model, 2)


def test_optimizing_twice_keeps_the_first_session() -> None:
    model = tuned(mlp())
    session = session_of(model)
    again, optimizer = agspeed.optimize(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert again is model and session_of(model) is session
    assert isinstance(optimizer, torch.optim.SGD)


# --- switches ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the candidates that are compiled in this process."""
    from agspeed.backends import candidate

    seen: list[str] = []
    original = type(candidate("aot")).compile

    def compile_and_note(self: Any, *args: Any) -> Any:
        seen.append(self.name)
        return original(self, *args)

    monkeypatch.setattr(type(candidate("aot")), "compile", compile_and_note)
    yield seen


def test_disabled_by_the_environment(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    monkeypatch.setenv("AGSPEED_DISABLE", "1")
    model = agspeed.optimize(mlp(), **FAST)
    steps(model)
    assert session_of(model) is None and not calls and model._compiled_call_impl is None

    @agspeed.optimize(mode="max")
    def step() -> int:
        return 3

    assert step() == 3 and not hasattr(step, "__wrapped__")


def test_mode_off_does_nothing(calls: list[str]) -> None:
    model = agspeed.optimize(mlp(), mode="off")
    steps(model)
    assert session_of(model) is None and not calls


@pytest.mark.parametrize("when", ["while tuning", "tuned"])
def test_paused_runs_the_untouched_module(when: str) -> None:
    model = tuned(mlp()) if when == "tuned" else agspeed.optimize(mlp(), **FAST)
    session = session_of(model)
    session.regions and session.regions[0].dispatcher.set_target(lambda *args: 1 / 0)
    with agspeed.paused():
        with agspeed.paused():
            steps(model, 2)
        steps(model, 1)
        assert session_of(model) is session
    if when == "tuned":
        with pytest.raises(ZeroDivisionError):
            steps(model, 1)
    else:
        steps(model)
        assert agspeed.status(model) == "tuned"


def test_optimized_while_paused_starts_afterwards() -> None:
    with agspeed.paused():
        model = agspeed.optimize(mlp(), **FAST)
        steps(model)
        assert not session_of(model) or not session_of(model).regions
    steps(model)
    assert agspeed.status(model) == "tuned"


def test_restore_leaves_nothing_behind() -> None:
    model = mlp()
    attributes, names, type_before = set(vars(model)), list(model.state_dict()), type(model)
    gc.collect()  # removes sessions whose models are gone
    hooks = len(_global_optimizer_post_hooks)
    tuned(model)
    assert list(model.state_dict()) == names
    assert agspeed.restore(model) is model
    assert set(vars(model)) == attributes and type(model) is type_before
    assert model._compiled_call_impl is None and not model._forward_hooks and not model._backward_hooks
    assert agspeed.status(model).reason == "agspeed.restore has undone optimize"
    assert len(_global_optimizer_post_hooks) == hooks
    steps(model, 2)
    tuned(model)


def test_restore_of_a_step_function_returns_the_users_own() -> None:
    def step() -> int:
        return 7

    optimized = agspeed.optimize(step, **FAST)
    assert optimized is not step and optimized.__name__ == "step"
    assert agspeed.restore(optimized) is step
    assert optimized() == 7


@pytest.mark.parametrize("style", ["decorator with arguments", "bare decorator", "call"])
def test_step_function_trains_as_eager(style: str) -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = as_loss(model(batch))
            loss.backward()
            optimizer.step()
            return loss.detach()

        wrapped = wrap(step)
        return [*(wrapped(data(4, 8, seed=i)) for i in range(6)), *state(model)], wrapped

    styles = {
        "decorator with arguments": agspeed.optimize(**FAST),
        "bare decorator": agspeed.optimize,
        "call": lambda function: agspeed.optimize(function, **FAST),
    }
    expected, _ = run(lambda function: function)
    actual, wrapped = run(styles[style])
    for mine, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-6, atol=1e-6)
    if style != "bare decorator":  # the bare decorator uses the default mode, which times candidates
        assert agspeed.status(wrapped) == "tuned", agspeed.status(wrapped).reason
        selected = {
            region.where.rpartition("/")[2].partition(":")[0]: region.selected for region in session_of(wrapped).regions
        }
        assert selected[Path(__file__).name] == "aot" and selected["sgd.py"] == "aot"


def test_strict_raises_what_would_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from agspeed.backends import candidate

    def broken(self: Any, *args: Any) -> Any:
        raise RuntimeError("no such register")

    monkeypatch.setattr(type(candidate("aot")), "compile", broken)
    with pytest.raises(agspeed.AgspeedError, match="no such register"):
        steps(agspeed.optimize(mlp(), strict=True, **FAST))
    model = agspeed.optimize(mlp(), **FAST)
    steps(model)
    assert agspeed.status(model) == "eager"
    assert "no such register" in str(agspeed.report(model).to_dict()["plans"])


class _Checkpointed(nn.Module):
    """Uses one batch norm twice in a checkpointed part, which capture refuses."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(4)
        self.part = nn.Sequential(nn.Linear(8, 4), norm, nn.Linear(4, 4), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.part, x, use_reentrant=False)


def test_strict_raises_where_a_frame_is_left_to_eager() -> None:
    steps(agspeed.optimize(_Checkpointed(), **FAST))
    with pytest.raises(agspeed.AgspeedError, match=r"runs eagerly: .*strict is set"):
        steps(agspeed.optimize(_Checkpointed(), strict=True, **FAST))


def test_torch_compile_refuses_what_optimize_refuses() -> None:
    compiled = torch.compile(mlp(), backend=agspeed_backend, options={"backends": ["nope"]})
    with pytest.raises(Exception, match="Unknown backend 'nope'"):
        compiled(torch.randn(4, 8))


# --- the user's own exceptions ----------------------------------------------------------------------------------------


class OwnError(Exception):
    pass


def _raising(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 3:
        raise OwnError("three is not allowed")  # line shown to the user
    return layer(x)


def _wrong_shape(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    hidden = layer(x)
    return hidden @ torch.ones(8, 4) + torch.ones(4 if x.shape[0] != 3 else 5)  # line shown to the user


def _index_error(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    last = 2 if x.shape[0] == 3 else 0
    return layer([x, x][last])  # line shown to the user


def _wrong_attribute(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x) if x.shape[0] != 3 else layer.nonexistent(x)  # line shown to the user


@pytest.mark.parametrize("first", [True, False], ids=["first call", "after tuning"])
@pytest.mark.parametrize("body", [_raising, _wrong_shape, _index_error, _wrong_attribute], ids=lambda b: b.__name__)
def test_own_exception_passes_through_unchanged(body: Callable[..., Any], first: bool) -> None:
    with pytest.raises(Exception) as reference:
        Linear(body)(data(3, 8))
    model = agspeed.optimize(Linear(body), **FAST)
    if not first:
        steps(model, 6)
    with pytest.raises(type(reference.value)) as caught:
        as_loss(model(data(3, 8))).backward()
    assert type(caught.value) is type(reference.value) and str(caught.value) == str(reference.value)
    shown = traceback.format_tb(caught.value.__traceback__)
    assert any("# line shown to the user" in line for line in shown), "".join(shown)
    steps(model, 6)
    assert agspeed.status(model) == "tuned", agspeed.status(model).reason


class _Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)  # line shown to the user
        return hidden.relu()


def test_error_that_only_data_cause_is_eagers() -> None:
    """The compiled region detects an index out of range, and the user gets eager's own error."""
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 30])
    with pytest.raises(IndexError) as reference:
        _Lookup()(bad)
    model = agspeed.optimize(_Lookup(), **FAST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        as_loss(model(good)).backward()
        optimizer.step()
    assert agspeed.status(model) == "tuned"
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            model(bad)
        assert str(caught.value) == str(reference.value)
        assert "# line shown to the user" in "".join(traceback.format_tb(caught.value.__traceback__))
    region = session_of(model).regions[0]
    assert region.selected == "aot", "the user's mistake cost the candidate its place"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_forward_passes_through(stop: type[BaseException]) -> None:
    def body(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise stop
        return layer(x)

    model = tuned(Linear(body))
    with pytest.raises(stop):
        model(data(3, 8))
    steps(model, 2)
    assert agspeed.status(model) == "tuned"
