# SPDX-License-Identifier: Apache-2.0
"""Torch's compiler loads code only from a folder of this user, and other users of torch.compile keep theirs."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agspeed.errors import UnsupportedError
from agspeed.torch_compat import compiler_cache

CHOSEN = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No folder is chosen, and the test has a temporary directory of its own. Returns the folder that torch would
    use."""
    monkeypatch.delenv(CHOSEN, raising=False)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return temporary / f"torchinductor_{getpass.getuser()}"


def plant(folder: Path) -> None:
    """Makes a folder that others may write to. If the test may change its owner, it belongs to another user."""
    folder.mkdir()
    folder.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(folder, 4711, -1)


def test_it_is_below_the_cache_and_private(tmp_path: Path) -> None:
    taken = compiler_cache.variables(tmp_path / "cache")
    assert taken == {CHOSEN: str(tmp_path / "cache" / "inductor")}
    assert all(Path(path).stat().st_mode & 0o777 == 0o700 for path in (tmp_path / "cache", taken[CHOSEN]))


def test_a_folder_that_the_user_chose_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOSEN, str(tmp_path / "mine"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    chosen = {CHOSEN: str(tmp_path / "mine"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    assert compiler_cache.variables(tmp_path / "cache") == compiler_cache.chosen() == chosen
    assert not (tmp_path / "cache").exists()


def test_what_torch_has_set_by_itself_is_no_choice(
    tmp_path: Path, nothing_chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOSEN, str(nothing_chosen))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(nothing_chosen / "triton" / "0"))
    assert compiler_cache.chosen() == {}
    with compiler_cache.using(tmp_path / "cache"):
        assert os.environ[CHOSEN] == str(tmp_path / "cache" / "inductor") and "TRITON_CACHE_DIR" not in os.environ
    assert os.environ[CHOSEN] == str(nothing_chosen)
    assert os.environ["TRITON_CACHE_DIR"] == str(nothing_chosen / "triton" / "0")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a folder to another group")
@pytest.mark.parametrize("name", ["cache", "cache/inductor"])
def test_a_folder_that_a_group_may_write_to_is_not_used(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir(parents=True)
    os.chown(tmp_path / name, -1, 4711)
    (tmp_path / name).chmod(0o770)
    assert Path(compiler_cache.variables(tmp_path / "cache")[CHOSEN]).parent == tmp_path / "tmp"


@pytest.mark.parametrize("name", ["cache", "cache/inductor"])
def test_a_folder_of_others_is_not_used(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(mode=0o700, exist_ok=True)
    plant(tmp_path / name)
    taken = compiler_cache.variables(tmp_path / "cache")[CHOSEN]
    assert Path(taken).parent == tmp_path / "tmp" and Path(taken).stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / name).iterdir()) == []


def test_where_no_folder_can_be_trusted_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "cache")
    plant(tmp_path / "tmp" / f"torchinductor_{os.getuid()}")
    with pytest.raises(UnsupportedError, match="folder of your own"):
        compiler_cache.variables(tmp_path / "cache")
    monkeypatch.setenv(CHOSEN, str(tmp_path / "cache"))
    with pytest.raises(UnsupportedError, match=f"from {CHOSEN}.*folder of your own"):
        compiler_cache.variables(tmp_path / "another")


def test_another_process_takes_the_same_folder(tmp_path: Path, nothing_chosen: Path) -> None:
    given = {"HOME": "/home/user", CHOSEN: str(nothing_chosen), "TRITON_CACHE_DIR": str(nothing_chosen / "triton")}
    taken = compiler_cache.handed_on(given, tmp_path / "cache")
    assert taken == {"HOME": "/home/user", CHOSEN: str(tmp_path / "cache" / "inductor")}


_SCRIPT = """
import json, os, sys
import torch, agspeed

def train(model):
    for step in range(6):
        torch.manual_seed(step)
        model(torch.randn(4, 8)).square().sum().backward()

torch.manual_seed(0)
before = dict(os.environ)
model = agspeed.optimize(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)),
    mode="deterministic", backends=["inductor"], cache_dir=sys.argv[1],
)
train(model)
report = agspeed.report(model).to_dict()
print(json.dumps({
    "chosen": report["decision"]["chosen"],
    "reasons": [plan["reason"] for plan in report["plans"]],
    "left": {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")},
}))
"""


@pytest.mark.slow
def test_nothing_of_a_planted_folder_is_read_and_training_compiles_as_ever(
    tmp_path: Path, nothing_chosen: Path
) -> None:
    """The compile child and the training process use the same folder, so that one loads what the other compiles."""
    plant(nothing_chosen)
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path / "cache")]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert found["chosen"] == "inductor", found
    assert found["left"] == {CHOSEN: None, "TRITON_CACHE_DIR": None}, "other users of torch.compile keep their cache"
    assert list(nothing_chosen.iterdir()) == []
    own = tmp_path / "cache" / "inductor"
    assert list(own.rglob("*.so")) and list((own / "precompiled_headers").iterdir())
    assert not any(path.stat().st_mode & 0o022 for path in (own.parent, own))
