# SPDX-License-Identifier: Apache-2.0
"""Compile children that print, die, fall silent or run out of memory, and operators that a child has to load first."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed import config
from agspeed.backends import CompileOptions, registry
from agspeed.errors import UnsupportedError
from agspeed.frontend.session import session_of
from agspeed.tuning.child.child_log import ChildLog
from agspeed.tuning.child.job import write_region
from agspeed.tuning.child.process import Child, Job
from agspeed.tuning.child.queue import CompileQueue
from tests.python.frontend.differential import state
from tests.python.support.small_models import mlp, steps

PLUG_IN = '''
import os, resource, signal, sys, time
import torch
from agspeed.backends import Candidate

def descriptors():
    """Returns every open descriptor but the standard ones: the pipe for answers is one of them."""
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]

class _Base(Candidate):
    def compile(self, gm, example_inputs, options):
        self.misbehave()
        return gm.forward

class Prints(_Base):
    name = "prints"
    def misbehave(self):
        for stream in (sys.stdout, sys.stderr):
            for _ in range(40):
                stream.write("x" * 500_000 + "\\n")
            stream.flush()

class SaysWhy(_Base):
    name = "says-why"
    def misbehave(self):
        print("earlier", "x" * 5000, "last words: \\x1b[31mno such register", file=sys.stderr, sep="\\n", flush=True)
        os._exit(1)

class RealTimeSignal(_Base):
    name = "real-time-signal"
    def misbehave(self): os.kill(os.getpid(), signal.SIGRTMIN + 1)

class LongReason(_Base):
    name = "long-reason"
    def misbehave(self): raise ValueError("y" * 10_000_000)

class WritesAnswers(_Base):
    name = "writes-answers"
    def misbehave(self):
        for descriptor in descriptors():
            try:
                os.write(descriptor, b'nonsense\\n[1]\\n{"id": 1}\\n{"id": -1, "state": "ready"}\\n')
            except OSError:
                pass

class FloodsAnswers(_Base):
    name = "floods-answers"
    def misbehave(self):
        for descriptor in descriptors():
            try:
                for _ in range(400):
                    os.write(descriptor, b"z" * 65536)
            except OSError:
                pass
        time.sleep(600)

class HangsUp(_Base):
    name = "hangs-up"
    def misbehave(self):
        os.closerange(3, 1 << 16)
        time.sleep(600)

class OutOfMemory(_Base):
    name = "out-of-memory"
    def misbehave(self):
        resource.setrlimit(resource.RLIMIT_AS, (1 << 33, resource.RLIM_INFINITY))
        bytearray(1 << 34)

class OutOfMemoryInTorch(_Base):
    name = "out-of-memory-in-torch"
    def misbehave(self):
        resource.setrlimit(resource.RLIMIT_AS, (1 << 33, resource.RLIM_INFINITY))
        torch.empty(1 << 34)
'''

EXPECTED = {
    "floods-answers": ("failed", "the compile process stopped answering while compiling or trying it"),
    "hangs-up": ("failed", "the compile process stopped answering while compiling or trying it"),
    "long-reason": ("failed", "compile failed with ValueError: yyyy"),
    "out-of-memory": ("failed", "compile failed with MemoryError"),
    "out-of-memory-in-torch": ("failed", "compile failed with RuntimeError"),
    "prints": ("ready", ""),
    "real-time-signal": ("failed", "died of signal 35 while compiling"),
    "says-why": ("failed", "exited with code 1 ('last words:  [31mno such register') while compiling"),
    "writes-answers": ("ready", ""),
}


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that provides the candidates of `PLUG_IN`."""
    (tmp_path / "ag_bad_children.py").write_text(PLUG_IN)
    info = tmp_path / "ag_bad_children-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ag-bad-children\nVersion: 1.0\n")
    members = {name: "".join(part.title() for part in name.split("-")) for name in EXPECTED}
    members["out-of-memory-in-torch"] = "OutOfMemoryInTorch"
    lines = [f"{name} = ag_bad_children:{member}" for name, member in members.items()]
    (info / "entry_points.txt").write_text("[agspeed.backends]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.candidates.cache_clear()
    yield
    registry.candidates.cache_clear()
    sys.modules.pop("ag_bad_children", None)


def _region(model: nn.Module) -> Any:
    """Returns the graph that a training step of `model` captures, and its inputs."""
    agspeed.optimize(model, mode="deterministic", backends=["graph-eager"])
    steps(model, 1)
    region = session_of(model).regions[0]  # type: ignore[union-attr]
    region.select("graph-eager", observed=True)
    steps(model, 1)
    return region


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


def _try(child: Child, names: list[str], region: Any) -> dict[str, dict[str, Any]]:
    """Returns the child's answers."""
    with write_region(region, child.folder.path) as file:
        jobs = {name: Job(name, file, CompileOptions(num_threads=1), 120.0) for name in names}
        for job in jobs.values():
            child.submit(job)
        child.wait(list(jobs.values()), timeout_s=280)
    return {name: job.answer or {} for name, job in jobs.items()}


@pytest.mark.slow
def test_child_that_misbehaves_costs_its_candidate_only(plug_in: None, child: Child) -> None:
    answers = _try(child, list(EXPECTED), _region(mlp()))
    for name, (outcome, reason) in EXPECTED.items():
        answer = answers[name]
        assert answer.get("state") == outcome and reason in answer["reason"], (name, str(answer)[:1000])
        assert len(answer["reason"]) < 700, name
    assert child._log.num_bytes() < 10 << 20


@pytest.mark.slow
def test_training_goes_on_beside_such_a_child(plug_in: None) -> None:
    model, expected = agspeed.optimize(mlp(), mode="deterministic", backends=["says-why"]), mlp()
    steps(model)
    steps(expected)
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))
    assert "last words" in str(agspeed.report(model).to_dict()["plans"])


# --- its log ----------------------------------------------------------------------------------------------------------


def test_log_keeps_its_end_only(tmp_path: Path) -> None:
    log = ChildLog(tmp_path)
    with os.fdopen(os.dup(log.fileno()), "wb") as file:
        file.write(b"before\n")
        file.flush()
        log.begin_job()
        assert log.last_line() == ""
        file.write(b"a line\n" * 2_000_000 + b"the end\n\n  \n")
        file.flush()
        log.cut()
        assert log.num_bytes() <= 1 << 16
        assert log.last_line() == "the end"
        file.write(b"and more\xff" + b"m" * 9000 + b"\n")
        file.flush()
    assert log.last_line().startswith("and more") and len(log.last_line()) < 320


def test_empty_log_says_nothing_and_has_no_name(tmp_path: Path) -> None:
    log = ChildLog(tmp_path)
    log.begin_job()
    log.cut()
    assert log.last_line() == "" and list(tmp_path.iterdir()) == []
    log.close()


# --- operators that Python registered ---------------------------------------------------------------------------------

OPERATORS = """
import torch

@torch.library.custom_op("{library}::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

double.register_fake(torch.empty_like)
double.register_autograd(lambda ctx, gradient: gradient * 2)

library = torch.library.Library("{library}_old", "DEF")
library.define("triple(Tensor x) -> Tensor")
library.impl("triple", lambda x: x * 3, "CompositeImplicitAutograd")

torch.library.define("{library}_new::quadruple", "(Tensor x) -> Tensor")
torch.library.impl("{library}_new::quadruple", "default", lambda x: x * 4)
torch.library.register_fake("{library}_new::quadruple", torch.empty_like)
"""


class UsesOperators(nn.Module):
    def __init__(self, library: str) -> None:
        super().__init__()
        self.layer, self.library = nn.Linear(8, 4), library

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = getattr(torch.ops, self.library).double(self.layer(x))
        y = getattr(torch.ops, f"{self.library}_old").triple(y)
        with torch.no_grad():
            scale = getattr(torch.ops, f"{self.library}_new").quadruple(y).abs().max()
        return y / scale


@pytest.mark.slow
def test_child_knows_operators_of_modules_on_the_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: Child
) -> None:
    (tmp_path / "ag_operators.py").write_text(OPERATORS.format(library="ag_test_path"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("ag_operators")
    answer = _try(child, ["aot"], _region(UsesOperators("ag_test_path")))["aot"]
    assert (answer["state"], answer["reason"]) == ("ready", "")


@pytest.mark.parametrize("name", ["__main__", "ag_module_without_a_file"])
def test_operators_of_what_cannot_be_imported_are_refused_by_name(name: str, tmp_path: Path) -> None:
    library = f"ag_test_{name.strip('_')}"
    namespace = {"__name__": name}
    exec(compile(OPERATORS.format(library=library), "<string>", "exec"), namespace)
    with pytest.raises(UnsupportedError, match=rf"operator '{library}::double' was registered by '{name}'") as caught:
        write_region(_region(UsesOperators(library)), tmp_path)
    assert "move the operator to a module of its own" in str(caught.value)


@pytest.mark.slow
def test_module_whose_import_fails_in_the_child_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: Child
) -> None:
    home = tmp_path / "ag_operators_once.py"
    home.write_text(OPERATORS.format(library="ag_test_once"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("ag_operators_once")
    home.write_text("raise LookupError('this works once only')")
    answer = _try(child, ["aot"], _region(UsesOperators("ag_test_once")))["aot"]
    assert answer["state"] == "failed"
    assert "could not try it: LookupError: this works once only" in answer["reason"]


# --- candidates that stay in the training process ---------------------------------------------------------------------


@torch._dynamo.allow_in_graph
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


class CallsOpaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return opaque(self.layer(x))


@pytest.mark.slow
def test_graph_that_cannot_travel_is_compiled_here_where_the_user_waits(caplog: pytest.LogCaptureFixture) -> None:
    model, expected = CallsOpaque(), CallsOpaque()
    torch.manual_seed(11)
    agspeed.optimize(model, mode="max", backends=["inductor"])
    steps(model, 4)
    drawn = torch.rand(3)
    torch.manual_seed(11)
    steps(expected, 4)
    assert torch.equal(drawn, torch.rand(3))
    for mine, reference in zip(state(model), state(expected), strict=True):
        torch.testing.assert_close(mine, reference)
    outcome = session_of(model).regions[0].outcomes["inductor"]  # type: ignore[union-attr]
    assert outcome.state == "ready", outcome
    assert "in the training process, which stands still for about" in caplog.text
    assert "'opaque'" in caplog.text and os.path.basename(__file__) in caplog.text
    agspeed.restore(model)


@pytest.mark.parametrize(("mode", "budget_s"), [("max", 1.0), ("auto", None), ("deterministic", None)])
def test_graph_that_cannot_travel_is_refused_with_the_users_line_elsewhere(mode: str, budget_s: float | None) -> None:
    region = _region(CallsOpaque())
    settings = config.resolve({"mode": mode} | ({} if budget_s is None else {"budget_s": budget_s}))
    queue = CompileQueue(lambda: CompileOptions(num_threads=1), settings)
    assert queue.start("inductor", [(region, "inductor")], "idle") is None
    queue.close()
    outcome = region.outcomes["inductor"]
    assert outcome.state == "skipped"
    assert "cannot be handed to a child process: node 'opaque'" in outcome.reason
    assert os.path.basename(__file__) in outcome.reason
