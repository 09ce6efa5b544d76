# SPDX-License-Identifier: Apache-2.0
"""Training goes on eagerly if the compiler is missing or prints nonsense, or if folders fail, vanish or fill up."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import agspeed
from agspeed.tuning.child.job import write_region
from tests.python.frontend.differential import state
from tests.python.support.small_models import Linear, mlp, steps

IN_CHILD: dict[str, Any] = {"mode": "deterministic", "backends": ["inductor"]}
"""`inductor` is tried in the child before it is used."""

_TRAINED_BY_HAND = """
import os, resource
import torch
import agspeed

def train(model):
    for step in range(6):
        torch.manual_seed(step)
        model(torch.randn(4, 8)).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.01 * parameter.grad)
                parameter.grad = None
    return list(model.parameters())

def mlp():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

keywords = {"mode": "deterministic", "backends": ["inductor"]}
if "FULL_DISK" in os.environ:  # every write to a file fails from here on
    if os.environ["LOADED"]:
        import agspeed.frontend.machinery
    keywords = {"mode": "max", "backends": ["native", "inductor"], "cache_dir": os.environ["FULL_DISK"]}
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
model = agspeed.optimize(mlp(), **keywords)
assert all(torch.equal(a, b) for a, b in zip(train(model), train(mlp()), strict=True))
print(agspeed.status(model))
print([plan["reason"] for plan in agspeed.report(model).to_dict()["plans"]])
"""

_SILENT_COMPILER = "#!/bin/sh\nexit 0\n"
_LYING_COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then echo nonsense > "$2"; fi
  shift
done
yes nonsense | head -c 5000000
"""


def _train_in_a_process(environment: dict[str, str]) -> str:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", _TRAINED_BY_HAND]
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        pytest.param("/bin/false", "No working C++ compiler", marks=pytest.mark.thorough),
        ("/nowhere/g++", "no C++ compiler (/nowhere/g++) is on PATH"),
        pytest.param(_SILENT_COMPILER, "compile failed with", marks=pytest.mark.thorough),
        pytest.param(_LYING_COMPILER, "compile failed with", marks=pytest.mark.thorough),
    ],
    ids=["fails", "missing", "silent", "lying"],
)
def test_compiler_that_does_not_work(compiler: str, reason: str, tmp_path: Path) -> None:
    if compiler.startswith("#!"):
        path = tmp_path / "g++"
        path.write_text(compiler)
        path.chmod(0o755)
        compiler = str(path)
    printed = _train_in_a_process({"CXX": compiler, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})
    assert printed.startswith("eager") and reason in printed, printed


def test_inductor_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """Without the folder torch cannot load its compiler at all, which eager training does not need."""
    (tmp_path / "file").write_text("in the way")
    printed = _train_in_a_process({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file")})
    assert printed.startswith("eager: torch's compiler cannot be loaded: FileExistsError"), printed


@pytest.mark.slow
@pytest.mark.parametrize("loaded", ["yes", ""], ids=["after loading", "before loading"])
def test_disk_that_is_full(loaded: str, tmp_path: Path) -> None:
    """If torch finds no folder for temporary files, it cannot load its compiler at all."""
    printed = _train_in_a_process({"FULL_DISK": str(tmp_path / "cache"), "LOADED": loaded})
    reason = (
        "there is no room to hand the graph to a child process: " if loaded else "torch's compiler cannot be loaded: "
    )
    assert reason in printed, printed


# --- no space on the disk ---------------------------------------------------------------------------------------------


def _train_and_compare(**keywords: Any) -> str:
    """Trains an optimized model, which must equal eager bit for bit. Returns the outcome of its plans."""
    model, expected = agspeed.optimize(mlp(), **{**IN_CHILD, **keywords}), mlp()
    steps(model)
    steps(expected)
    assert all(torch.equal(a, b) for a, b in zip(state(model), state(expected), strict=True))
    assert agspeed.status(model) == "eager"
    return str(agspeed.report(model).to_dict()["plans"])


def _full(*args: Any, **keywords: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_room_for_the_childs_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert "there is no room to hand the graph to a child process: FileNotFoundError" in _train_and_compare()


@pytest.mark.parametrize("error", [_full, lambda *args: (_ for _ in ()).throw(RuntimeError("PytorchStreamWriter"))])
def test_no_room_for_a_regions_tensors(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "save", error)
    assert "there is no room" in _train_and_compare()


def test_graph_that_breaks_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agspeed.tuning.child.job.export", lambda gm: {}["a bug"])
    assert "handing the graph to a child process failed: KeyError: 'a bug'" in _train_and_compare().replace("\\", "")


def test_inductor_folder_that_is_taken_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file"))
    assert "the compile process could not try it: FileExistsError" in _train_and_compare()


def test_region_half_written_is_not_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from agspeed.frontend.session import session_of

    model = agspeed.optimize(mlp(), mode="deterministic", backends=["graph-eager"])
    steps(model, 2)
    monkeypatch.setattr(torch, "save", _full)
    with pytest.raises(OSError, match="No space left"):
        write_region(session_of(model).regions[0], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("python", "reason"),
    [("/nowhere/python", "no compile process could be started"), ("/bin/false", "exited with code 1"),
     ("/bin/echo", "exited with code 0 ('-P -c import json, runpy, sys")],
)  # fmt: skip
def test_no_process_can_be_started(python: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", python)
    assert reason in _train_and_compare().replace('\\"', "").replace("\\'", "'")


# --- the cache folder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["vanishes", "becomes a file"])
@pytest.mark.parametrize("mode", ["deterministic", "max"])
def test_cache_folder_is_lost_while_tuning(fate: str, mode: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    model, expected = Linear(lambda layer, x: layer(x).tanh()), Linear(lambda layer, x: layer(x).tanh())
    expected.load_state_dict(model.state_dict())
    agspeed.optimize(model, mode=mode, backends=["native", "graph-eager"], cache_dir=str(cache))
    shutil.rmtree(cache, ignore_errors=True)
    if fate == "becomes a file":
        cache.write_text("in the way")
    steps(model, 12)
    steps(expected, 12)
    for mine, reference in zip(state(model), state(expected), strict=True):
        torch.testing.assert_close(mine, reference)
    agspeed.restore(model)


def test_inputs_that_find_no_room_to_be_kept_are_not_checked_with(monkeypatch: pytest.MonkeyPatch) -> None:
    from agspeed.regions import region

    def no_room(arg: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1099511627776 bytes")

    monkeypatch.setattr(region, "_kept", no_room)
    model, expected = mlp(), mlp()
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    steps(model, 6)
    steps(expected, 6)
    for mine, reference in zip(state(model), state(expected), strict=True):
        assert torch.equal(mine, reference)


def test_a_torch_whose_sharded_modules_are_other_ones_leaves_them_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    from agspeed.frontend import target

    def other_units(module: Any, units: Any) -> bool:
        raise AttributeError("'FSDPState' object has no attribute '_fsdp_param_group'")

    monkeypatch.setattr(target, "units_of", lambda module: {"": module})
    monkeypatch.setattr(target, "are_clear", other_units)
    model, expected = mlp(), mlp()
    agspeed.optimize(model, mode="deterministic", backends=["aot"])
    assert agspeed.status(model) == "eager"
    assert "no attribute '_fsdp_param_group'" in agspeed.report(model).to_dict()["status"]["reason"]
    steps(model, 2)
    steps(expected, 2)
    for mine, reference in zip(state(model), state(expected), strict=True):
        assert torch.equal(mine, reference)
