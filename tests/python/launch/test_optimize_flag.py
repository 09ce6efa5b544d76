# SPDX-License-Identifier: Apache-2.0
"""`agspeed run --optimize`: it runs one process in its own place, or ranks, and their models are optimized."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from agspeed import native
from tests.python.support.installed import installed
from tests.python.support.launcher import run, start

SHOW = "import os; print(os.getpid(), os.environ.get('AGSPEED_AUTO'), os.environ.get('WORLD_SIZE'))"
TRAIN = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters())
data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=8, num_workers=1)
for inputs, labels in data:
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
print([value.flatten().tolist() for value in model.state_dict().values()])
print(torch.optim.Optimizer.__init__.__module__, torch.optim.Optimizer.__init__.__code__.co_filename)
"""


def test_without_ranks_the_command_takes_the_place_of_the_launcher(tmp_path: Path) -> None:
    status, out, err = run("--optimize", sys.executable, "-c", SHOW, **installed(tmp_path))
    assert (status, out.split()[1:]) == (0, ["1", "None"]), err


def test_ranks_get_the_variable(tmp_path: Path) -> None:
    status, out, err = run("-np", "2", "--optimize", sys.executable, "-c", SHOW, **installed(tmp_path))
    assert status == 0, err
    assert sorted(line.split()[1:] for line in out.splitlines()) == [["1", "2"]] * 2


def test_the_status_of_the_command_is_the_launchers(tmp_path: Path) -> None:
    assert run("--optimize", sys.executable, "-c", "raise SystemExit(7)", **installed(tmp_path))[0] == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--optimize", "no-such-program"], "cannot start no-such-program: No such file or directory"),
        (["--optimize"], "name the command"),
        (["--optimize", "--output-filename", "logs", "python"], "say how many ranks"),
    ],
)
def test_a_wrong_use_is_one_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    status, out, err = run(*words, **installed(tmp_path))
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_without_a_wheel_it_names_the_other_way() -> None:
    status, _, err = run("--optimize", sys.executable, "-c", SHOW)
    assert status == 2
    assert "write `import agspeed` into the script" in err


def test_it_is_refused_if_torch_may_not_load_agspeed(tmp_path: Path) -> None:
    variables = {**installed(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    status, _, err = run("--optimize", sys.executable, "-c", SHOW, **variables)
    assert status == 2
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in err


@pytest.mark.slow
@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
def test_a_script_is_optimized_and_one_flag_switches_it_off(tmp_path: Path) -> None:
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(TRAIN)
    variables = {
        **installed(tmp_path),
        "AGSPEED_BACKENDS": "aot",
        "AGSPEED_BUILD_DIR": os.environ.get("AGSPEED_BUILD_DIR", ""),
        "AGSPEED_CACHE_DIR": str(tmp_path / "cache"),
        "AGSPEED_MODE": "deterministic",
        "AGSPEED_REPORT": str(report),
    }
    process = start("--no-optimize", "-np", "1", sys.executable, script, **variables, AGSPEED_AUTO="1")
    off, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert not report.exists()
    assert "agspeed" not in err
    process = start("--optimize", sys.executable, script, **variables)
    on, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "agspeed: Sequential is optimized (AGSPEED_AUTO)" in err.splitlines()
    assert json.loads(report.read_text())["decision"]["chosen"] == "aot"
    weights = on.splitlines()[0]
    assert off.splitlines()[0] == f"[0]<stdout>:{weights}"
    assert "autoload.py" in on.splitlines()[1]
    assert "autoload.py" not in off.splitlines()[1]
