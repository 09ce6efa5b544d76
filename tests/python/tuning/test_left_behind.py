# SPDX-License-Identifier: Apache-2.0
"""However a tuning run ends, nothing of it is left in the temporary or the working directory once the next run has
started. If it exits by itself, nothing is left at all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import agspeed
from agspeed import private_folder
from agspeed.private_folder import PrivateFolder, sweep
from tests.lint import sources
from tests.python.frontend import plug_ins
from tests.python.support.pairs import first_of
from tests.python.support.processes import left_after_a_while
from tests.python.support.small_models import mlp, steps

_PLUG_IN = """
import os, subprocess, tempfile, time
from pathlib import Path
from agspeed.backends import Candidate

class Stuck(Candidate):
    name = "stuck"
    def compile(self, gm, example_inputs, options):
        Path(tempfile.mkdtemp(prefix="compiler-"), "unfinished.s").write_text("mov")
        tempfile.mkstemp(prefix="cc")
        compiler = subprocess.Popen(["sleep", "600"])
        ready = Path(os.environ["WORK"], "ready")
        ready.with_suffix(".new").write_text(f"{os.getpid()} {compiler.pid}")
        ready.with_suffix(".new").rename(ready)
        time.sleep(600)
"""
_TRAIN = """
import os, signal, sys, torch, agspeed
from agspeed.tuning import tuner_config
from agspeed.tuning.child.process import Child

make_config = tuner_config.tuner_config

def side_by_side(*given, **named):  # steps go on beside the child's compile
    return {**make_config(*given, **named), "has_spare_cores": True}

signal.signal(signal.SIGINT, signal.default_int_handler)
tuner_config.tuner_config = side_by_side
Child.start = lambda self: None  # it loads Inductor beforehand, which is not used here
model = torch.nn.Linear(64, 64)
agspeed.optimize(model, mode="max", backends=[sys.argv[2]], cache_dir=sys.argv[3])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ready = os.path.join(os.environ["WORK"], "ready")
while True:
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    if sys.argv[1] in ("exit", "exception", "next") and (sys.argv[1] == "next" or os.path.exists(ready)):
        break
if sys.argv[1] == "exception":
    raise ValueError("the user's own")
"""
_SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "kill -9": signal.SIGKILL}
_SECONDS = 240


class Run:
    """Training runs with a temporary and a working directory of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.temporary, self.working = folder / "tmp", folder / "cwd"
        for each in (self.temporary, self.working, folder / "work"):
            each.mkdir()
        (folder / "train.py").write_text(_TRAIN)

    def start(self, end: str, backend: str = "stuck") -> subprocess.Popen[str]:
        variables: dict[str, Any] = {"TMPDIR": self.temporary, "WORK": self._folder / "work"}
        variables["PYTHONPATH"] = os.pathsep.join([str(self._folder), str(sources.ROOT / "python")])
        command = [sys.executable, self._folder / "train.py", end, backend, self._folder / "cache"]
        return subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            cwd=self.working,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, end: str) -> None:
        """Runs training to that end while its child compiles. Returns when the child and its compiler have ended,
        too."""
        ready = self._folder / "work" / "ready"
        with self.start(end) as training:
            try:
                deadline = time.monotonic() + _SECONDS
                while not ready.exists() and training.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                if end in _SIGNALS:
                    training.send_signal(_SIGNALS[end])
                output, _ = training.communicate(timeout=_SECONDS)
            finally:
                training.kill()
        assert ready.exists(), output
        pids = [int(pid) for pid in ready.read_text().split()]
        assert not left_after_a_while(pids, _SECONDS), "child or compiler is left"
        ready.unlink()

    @property
    def left(self) -> list[str]:
        return sorted(str(path.relative_to(self._folder)) for each in (self.temporary, self.working)
                      for path in each.rglob("*"))  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    plug_ins.install(tmp_path, monkeypatch, _PLUG_IN, {"stuck": "Stuck"})
    return Run(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("end", first_of(["exit", "exception", "Ctrl-C"], 1))
def test_a_run_that_ends_by_itself_leaves_nothing(run: Run, end: str) -> None:
    run.end(end)
    assert run.left == []


@pytest.mark.slow
@pytest.mark.parametrize("end", first_of(["kill -9", "SIGTERM"], 1))
def test_what_a_killed_run_leaves_is_small_and_gone_once_the_next_has_started(run: Run, end: str) -> None:
    run.end(end)
    assert not [name for name in run.left if name.endswith((".pt", ".json"))], "parameters and batch are on the disk"
    with run.start("next") as following:
        output, _ = following.communicate(timeout=_SECONDS)
    assert following.returncode == 0, output
    assert run.left == []


def test_a_graph_that_cannot_be_partitioned_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import networkx
    from torch._functorch import partitioners

    def fail(*_: Any, **__: Any) -> Any:
        raise networkx.NetworkXUnbounded("no cut is finite")

    monkeypatch.chdir(tmp_path)
    for owner in (networkx, partitioners):
        if hasattr(owner, "minimum_cut"):
            monkeypatch.setattr(owner, "minimum_cut", fail)
    model = agspeed.optimize(mlp(), mode="deterministic", backends=["native"])
    steps(model)
    assert "NetworkXUnbounded" in str(agspeed.report(model).to_dict()["plans"])
    assert list(tmp_path.iterdir()) == []


# --- private folders --------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_folder.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_last_process_that_closes_a_folder_removes_it(temporary: Path) -> None:
    first, second = (PrivateFolder("host", "0123456789abcdef") for _ in range(2))
    assert first.path == second.path and first.path.stat().st_mode & 0o777 == 0o700
    first.write("0" * 24 + ".json", b"{}")
    first.close()
    assert second.read("0" * 24 + ".json", 10) == b"{}"
    assert second.read("0" * 24 + ".json", 1) is None and second.read("1" * 24 + ".json", 10) is None
    second.close()
    assert list(temporary.iterdir()) == []


def test_a_sweep_leaves_folders_in_use_and_those_of_others(temporary: Path) -> None:
    used = PrivateFolder("child")
    (used.path / "file").touch()
    name = used.path.name.rpartition("-")[0]
    dead, link, open_to_all = (temporary / f"{name}-{digit * 16}" for digit in "012")
    dead.mkdir(0o700)
    (dead / "folder").mkdir()
    (dead / "folder" / "link").symlink_to(temporary)
    link.symlink_to(used.path)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    foreign = temporary / f"{name}-{'3' * 16}x"
    foreign.mkdir(0o700)
    sweep()
    assert sorted(temporary.iterdir()) == sorted([used.path, link, open_to_all, foreign])
    assert (used.path / "file").exists()
    used.close()
    assert not used.path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user's")
def test_a_folder_of_another_user_is_neither_entered_nor_removed(temporary: Path) -> None:
    planted = temporary / f"agspeed-host-{os.getuid()}-0123456789abcdef"
    planted.mkdir(0o700)
    (planted / ("0" * 24 + ".json")).write_text("{}")
    os.chown(planted, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        PrivateFolder("host", "0123456789abcdef")
    sweep()
    assert [path.name for path in planted.iterdir()] == ["0" * 24 + ".json"]


def test_a_folder_that_was_put_in_the_place_of_ours_is_left_alone(temporary: Path) -> None:
    folder = PrivateFolder("child")
    (folder.path / "ours").touch()
    folder.path.rename(temporary / "moved")
    folder.path.mkdir(0o700)
    (folder.path / "file").touch()
    folder.close()
    assert (folder.path / "file").exists() and list((temporary / "moved").iterdir()) == []
