# SPDX-License-Identifier: Apache-2.0
"""Training goes on with candidates and plug-ins that fail, crash, hang or exit, in this process and in the child."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.backends import CompileOptions, candidate
from agspeed.frontend.session import session_of
from agspeed.tuning import deferred_regions
from agspeed.tuning.child.job import write_region
from agspeed.tuning.child.process import Child, Job
from tests.python.frontend.differential import as_loss, compare, state
from tests.python.support.pairs import thorough
from tests.python.support.processes import left_after_a_while
from tests.python.support.small_models import FAST, Linear, data, loop, mlp, steps, tuned

Wrap = Callable[[Any], Any]

# --- interrupts and broken candidates in this process -----------------------------------------------------------------


def _patched_compile(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, times: int = 1) -> None:
    """Makes the first `times` compiles of `aot` raise `error`."""
    cls = type(candidate("aot"))
    original, left = cls.compile, [times]

    def compile_or_raise(self: Any, *args: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise error
        return original(self, *args)

    monkeypatch.setattr(cls, "compile", compile_or_raise)


def test_interrupt_while_compiling_leaves_a_usable_model(monkeypatch: pytest.MonkeyPatch) -> None:
    _patched_compile(monkeypatch, KeyboardInterrupt())
    model, expected = agspeed.optimize(mlp(), **FAST), mlp()
    with pytest.raises(KeyboardInterrupt):
        steps(model)
    trained = state(model)
    batch = data(4, 8)
    expected.load_state_dict(model.state_dict())
    assert torch.equal(model(batch), expected(batch))
    steps(model)
    steps(expected)
    assert not all(torch.equal(a, b) for a, b in zip(trained, state(model), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))
    assert agspeed.status(model) in ("tuned", "eager")


@pytest.mark.parametrize("error", [RuntimeError("no such register"), SystemExit(3), MemoryError("too much")])
def test_candidate_that_fails_to_compile_costs_nothing_but_itself(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    _patched_compile(monkeypatch, error, times=100)
    model, expected = agspeed.optimize(mlp(), **FAST), mlp()
    steps(model)
    steps(expected)
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))
    assert agspeed.status(model) == "eager"
    plans = {plan["name"]: plan for plan in agspeed.report(model).to_dict()["plans"]}
    assert type(error).__name__ in plans["aot"]["reason"]


def test_candidate_that_breaks_at_run_time_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, expected = tuned(mlp()), mlp()
    steps(expected)
    region = session_of(model).regions[0]

    def broken(*args: Any) -> Any:
        raise RuntimeError("the kernel is gone")

    region.outcomes["aot"].runner = broken
    region.select("aot")
    steps(model)
    steps(expected)
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))
    assert region.selected == "graph-eager"
    assert caplog.text.count("the kernel is gone") == 1 and "small_models.py:" in caplog.text  # the user's line
    assert "the kernel is gone" in str(agspeed.report(model).to_dict()["fallbacks"])


# --- candidates that crash, hang or exit in the child -----------------------------------------------------------------

PLUG_IN = """
import os, signal, time
from agspeed.backends import Candidate

class _Base(Candidate):
    def compile(self, gm, example_inputs, options):
        self.compiling()
        forward = gm.forward
        def run(*args):
            self.running()
            return forward(*args)
        return run
    def compiling(self): pass
    def running(self): pass

class Good(_Base):
    name = "plug-in-good"

class CrashesCompiling(_Base):
    name = "plug-in-crashes-compiling"
    def compiling(self): os.kill(os.getpid(), signal.SIGSEGV)

class CrashesOnTrial(_Base):
    name = "plug-in-crashes-on-trial"
    def running(self): os.kill(os.getpid(), signal.SIGSEGV)

class ExitsCompiling(_Base):
    name = "plug-in-exits-compiling"
    def compiling(self): os._exit(3)

class ExitsOnTrial(_Base):
    name = "plug-in-exits-on-trial"
    def running(self): raise SystemExit(4)

class Hangs(_Base):
    name = "plug-in-hangs"
    def compiling(self): time.sleep(600)

class _OnLateShape(_Base):
    def compile(self, gm, example_inputs, options):
        if any(getattr(value, "shape", ())[:1] == (6,) for value in example_inputs):
            self.at_late_shape()
        return super().compile(gm, example_inputs, options)

class CrashesLater(_OnLateShape):
    name = "plug-in-crashes-later"
    def at_late_shape(self): os.abort()

class HangsLater(_OnLateShape):
    name = "plug-in-hangs-later"
    def at_late_shape(self): time.sleep(600)

class Wrong(_Base):
    name = "plug-in-wrong"
    def compile(self, gm, example_inputs, options):
        forward = gm.forward
        return lambda *args: tuple(out * 1.5 for out in forward(*args))
"""

_LATE = {
    "plug-in-crashes-later": ("CrashesLater", "SIGABRT"),
    "plug-in-hangs-later": ("HangsLater", "not ready after"),
}
_ENTRY_POINTS = {
    "plug-in-good": "Good",
    "plug-in-crashes-compiling": "CrashesCompiling",
    "plug-in-crashes-on-trial": "CrashesOnTrial",
    "plug-in-exits-compiling": "ExitsCompiling",
    "plug-in-exits-on-trial": "ExitsOnTrial",
    "plug-in-hangs": "Hangs",
    "plug-in-wrong": "Wrong",
    "plug-in-missing": "Missing",
    "aot": "Good",
}


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed package that provides candidates through the entry point group."""
    from agspeed.backends import registry

    (tmp_path / "ag_example_plugin.py").write_text(PLUG_IN)
    info = tmp_path / "ag_example_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ag-example-plugin\nVersion: 1.0\n")
    members = {**_ENTRY_POINTS, **{name: member for name, (member, _) in _LATE.items()}}
    lines = [f"{name} = ag_example_plugin:{member}" for name, member in members.items()]
    (info / "entry_points.txt").write_text("[agspeed.backends]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.candidates.cache_clear()
    yield
    registry.candidates.cache_clear()
    sys.modules.pop("ag_example_plugin", None)


def test_plug_in_is_found_and_cannot_replace_or_break_anything(plug_in: Any, caplog: pytest.LogCaptureFixture) -> None:
    from agspeed.backends import candidate_names

    names = candidate_names()
    assert "plug-in-good" in names and "plug-in-missing" not in names
    assert type(candidate("aot")).__module__ == "agspeed.backends.aot"
    assert "'plug-in-missing' could not be loaded" in caplog.text
    assert "'aot' has the name of a built-in backend and is ignored" in caplog.text


@pytest.mark.slow
def test_plug_in_trains_after_its_trial_in_the_child(plug_in: Any) -> None:
    def script(wrap: Wrap) -> list[Any]:
        return loop(wrap, Linear(lambda layer, x: layer(x).relu()), lambda m, i: as_loss(m(data(4, 8, seed=i))))

    outcome = compare(script, candidate="plug-in-good")
    assert outcome.ran("plug-in-good"), outcome.reasons()


@pytest.fixture
def captured() -> Any:
    """Returns a region captured by a model that trains as graph-eager."""
    model = agspeed.optimize(mlp(), mode="deterministic", backends=["graph-eager"])
    session = session_of(model)
    steps(model, 1)
    region = session.regions[0]
    if region.sample is None:
        region.select("graph-eager", observed=True)
        steps(model, 1)
    return region


@pytest.mark.thorough
def test_child_outlives_candidates_that_crash_hang_or_exit(plug_in: Any, captured: Any) -> None:
    child = Child()
    file = write_region(captured, child.folder.path)
    options = CompileOptions(num_threads=1)
    limits = {"plug-in-hangs": 8.0}
    names = [name for name in _ENTRY_POINTS if name not in ("plug-in-missing", "aot")]
    jobs = {name: Job(name, file, options, limits.get(name, 60.0)) for name in names}
    try:
        for job in jobs.values():
            child.submit(job)
        child.wait(list(jobs.values()), timeout_s=600)
        answers = {name: job.answer for name, job in jobs.items()}
    finally:
        child.close()
        file.close()
    assert not child.folder.path.exists()
    expected = {
        "plug-in-good": ("ready", ""),
        "plug-in-crashes-compiling": ("failed", "died of SIGSEGV"),
        "plug-in-crashes-on-trial": ("failed", "died of SIGSEGV"),
        "plug-in-exits-compiling": ("failed", "exited with code 3"),
        "plug-in-exits-on-trial": ("rejected", "SystemExit"),
        "plug-in-hangs": ("failed", "took longer than 8 s"),
        "plug-in-wrong": ("rejected", "of its largest element"),
    }
    for name, (outcome, reason) in expected.items():
        assert answers[name] is not None, f"{name}: no answer"
        assert answers[name]["state"] == outcome and reason in answers[name]["reason"], (name, answers[name])


@pytest.mark.thorough
def test_waiting_for_a_suspended_child_lets_it_run(captured: Any) -> None:
    child = Child()
    with write_region(captured, child.folder.path) as file:
        job = Job("aot", file, CompileOptions(num_threads=1))
        try:
            child.start()
            child.submit(job)
            child.set_level("suspended")
            child.wait([job], timeout_s=240)
            assert job.answer is not None, "the child was still suspended"
        finally:
            child.close()


_KILLED_WHILE_CHILD_IS_SUSPENDED = """
import os, select, signal, sys
from pathlib import Path
from agspeed.backends import CompileOptions
from agspeed.tuning.child.process import Child, Job

child = Child()
if sys.argv[2] == "from its start":
    child.set_level("suspended")
child.submit(Job("plug-in-hangs", open(int(sys.argv[1]), "rb"), CompileOptions(num_threads=1)))
if sys.argv[2] == "later":
    child.set_level("suspended")
    state = ""
    while state != "T":
        select.select([child._answers], [], [], 60)  # it tells that it has begun
        child.poll()
        state = Path(f"/proc/{child._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
print(child._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", map(thorough, ["later", "from its start"]))
def test_suspended_child_ends_when_training_is_killed(plug_in: Any, captured: Any, tmp_path: Path, when: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with write_region(captured, tmp_path) as file:
        killed = subprocess.run(
            [sys.executable, "-c", _KILLED_WHILE_CHILD_IS_SUSPENDED, str(file.fileno()), when],
            env=environment,
            pass_fds=[file.fileno()],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not left_after_a_while([int(killed.stdout)], 60)


@pytest.mark.slow
def test_training_goes_on_when_the_child_dies(plug_in: Any) -> None:
    model, expected = agspeed.optimize(mlp(), mode="deterministic", backends=["plug-in-crashes-on-trial"]), mlp()
    steps(model)
    steps(expected)
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))
    assert agspeed.status(model) == "eager"
    assert "SIGSEGV" in str(agspeed.report(model).to_dict()["plans"])


def _train_with_late_shape(model: nn.Module) -> list[torch.Tensor]:
    """Trains on batches of 4, then of 6, then of both."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate([4, 4, 4, 6, 6, 4, 6]):
        optimizer.zero_grad()
        as_loss(model(data(batch, 8, seed=step))).backward()
        optimizer.step()
    return state(model)


@pytest.mark.parametrize("name", map(thorough, _LATE))
def test_candidate_that_breaks_on_a_late_graph_is_out_for_that_graph_only(
    name: str, plug_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "hangs" in name:
        monkeypatch.setitem(deferred_regions._LONGEST_WAIT_S, "deterministic", 10.0)
    model = agspeed.optimize(mlp(), mode="deterministic", backends=[name], dynamic=False)
    trained = _train_with_late_shape(model)
    assert all(torch.equal(a, b) for a, b in zip(trained, _train_with_late_shape(mlp()), strict=True))
    first, late = session_of(model).regions
    assert (agspeed.status(model), first.selected, late.selected) == ("tuned", name, "graph-eager")
    assert _LATE[name][1] in late.outcomes[name].reason
    assert _LATE[name][1] in str(agspeed.report(model).to_dict()["fallbacks"])


@pytest.mark.slow
def test_late_graph_is_compiled_in_the_child_while_training_goes_on(plug_in: Any) -> None:
    model = agspeed.optimize(mlp(), mode="deterministic", backends=["plug-in-good"], dynamic=False)
    steps(model)
    session = session_of(model)
    session.settings = dataclasses.replace(session.settings, mode="auto")  # a mode that does not wait for compiles
    expected = mlp()
    expected.load_state_dict(model.state_dict())
    trained = _train_with_late_shape(model)
    assert all(torch.equal(a, b) for a, b in zip(trained, _train_with_late_shape(expected), strict=True))
    late = session.regions[1]
    assert late.selected == "graph-eager" and not late.outcomes
    agspeed.wait(model)
    steps(model, 1)
    assert late.selected == "plug-in-good", late.outcomes


def test_child_folder_is_kept_by_a_forked_copy(captured: Any) -> None:
    child = Child()
    pid = os.fork()
    if pid == 0:
        child.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0 and child.folder.path.exists()
    child.close()
    assert not child.folder.path.exists()
