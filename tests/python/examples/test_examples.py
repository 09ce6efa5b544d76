# SPDX-License-Identifier: Apache-2.0
"""The examples of python/examples run as the comments at their tops say."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.support.pairs import first_of

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "python" / "examples"
_NEEDS = {"accelerate_trainer": "accelerate", "lightning_trainer": "lightning"}

pytestmark = pytest.mark.slow


def _command(example: Path) -> list[str]:
    """Returns the first command in the example's docstring, run with this interpreter."""
    text = example.read_text(encoding="utf-8")
    words = shlex.split(next(line for line in text.splitlines() if line.startswith(("python ", "torchrun "))))
    program = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "torch.distributed.run"]
    return [*program, *words[1:-1], str(ROOT / words[-1])]


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(EXAMPLES)]),
        "AGSPEED_CACHE_DIR": str(folder / "cache"),
        "AGSPEED_BACKENDS": "native",  # without Inductor, which would take a minute
        "HF_HUB_OFFLINE": "1",
    }


def _run(command: list[str], folder: Path) -> str:
    environment = _environment(folder)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "name", first_of(["one_process", "hf_trainer", "step_function", "accelerate_trainer", "lightning_trainer"], 2)
)
def test_it_trains_and_shows_a_report(name: str, tmp_path: Path) -> None:
    if name in _NEEDS:
        pytest.importorskip(_NEEDS[name], reason=f"the example needs {_NEEDS[name]} from PyPI")
    shown = _run(_command(EXAMPLES / f"{name}.py"), tmp_path)
    assert "What was chosen" in shown and "Reproduce:" in shown


def test_ranks_reduce_their_gradients_over_agspeed(tmp_path: Path) -> None:
    assert "epoch 4" in _run(_command(EXAMPLES / "ddp.py"), tmp_path)


def test_the_notebook_runs_and_shows_its_report_as_a_page(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the notebook needs nbclient from PyPI")
    nbclient = pytest.importorskip("nbclient", reason="the notebook needs nbclient from PyPI")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=800, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=_environment(tmp_path))
    shown = "".join(str(output) for output in notebook.cells[-3].outputs)
    assert "agspeed.report(model) shows all" in shown, shown
    (output,) = notebook.cells[-1].outputs
    assert "What was chosen" in output["data"]["text/html"]


def test_every_example_is_run() -> None:
    known = {"one_process", "step_function", "accelerate_trainer", "hf_trainer", "lightning_trainer", "ddp", "digits"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == known
