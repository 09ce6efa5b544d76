# SPDX-License-Identifier: Apache-2.0
"""Scripts in the style of Horovod's examples, unedited (by the alias) and edited (the import), under several
launchers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.lint import sources
from tests.python.support import slurm_cluster
from tests.python.support.pairs import first_of

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.slow,  # every rank loads torch
]
_TIMEOUT_S = 120
Weights = dict[str, torch.Tensor]

FOLDER = sources.ROOT / "tests" / "python" / "horovod" / "scripts"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name not in ("__init__.py", "by_ddp.py"))
UNEDITED = [sys.executable, "-m", "agspeed.horovod"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
of_each = pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])
of_one = pytest.mark.parametrize("script", first_of(SCRIPTS, 1), ids=[path.stem for path in SCRIPTS])


@pytest.fixture(scope="module")
def weights_by_ddp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Weights]:
    """Returns a function that trains a script with DistributedDataParallel on two ranks and returns its weights."""
    folder, known = tmp_path_factory.mktemp("ddp"), {}

    def find(script: Path) -> Weights:
        if script not in known:
            run(*TORCHRUN, FOLDER / "by_ddp.py", script, "--save", folder / script.stem)
            known[script] = torch.load(folder / script.stem)
        return known[script]

    return find


def edited(script: Path, folder: Path) -> Path:
    """Returns the script with its imports changed."""
    path = folder / script.name
    text = script.read_text().replace("from horovod.common", "from agspeed.horovod")
    text = text.replace("from horovod", "from agspeed.horovod")
    path.write_text(text.replace("import horovod.torch", "import agspeed.horovod.torch"))
    return path


def assert_trained(saved: Path, expected: Weights) -> None:
    """Asserts equal weights, bit by bit."""
    found = torch.load(saved)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    return kept | {"PYTHONPATH": str(sources.ROOT / "python"), "AGSPEED_SOCKET_IFNAME": "lo"}


def run(*words: str | Path, variables: Mapping[str, str] | None = None) -> str:
    result = subprocess.run(
        [str(word) for word in words],
        env=environment() | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@of_one
def test_an_unedited_script_runs_by_agspeed_run(
    script: Path, tmp_path: Path, weights_by_ddp: Callable[[Path], Weights]
) -> None:
    launcher = [sys.executable, "-m", "agspeed", "run", "-np", "2", "--as-horovod", sys.executable]
    assert "ranks 2" in run(*launcher, script, "--save", tmp_path / "weights")
    assert_trained(tmp_path / "weights", weights_by_ddp(script))


@pytest.mark.thorough
@of_each
def test_an_edited_script_runs_by_torchrun(
    script: Path, tmp_path: Path, weights_by_ddp: Callable[[Path], Weights]
) -> None:
    assert "ranks 2" in run(*TORCHRUN, edited(script, tmp_path), "--save", tmp_path / "weights")
    assert_trained(tmp_path / "weights", weights_by_ddp(script))


@pytest.mark.parametrize(
    "script",
    [path if path.stem == "digits" else pytest.param(path, marks=pytest.mark.thorough) for path in SCRIPTS],
    ids=[path.stem for path in SCRIPTS],
)
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun on this machine")
def test_an_unedited_script_runs_by_mpirun(
    script: Path, tmp_path: Path, weights_by_ddp: Callable[[Path], Weights]
) -> None:
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    assert "ranks 2" in run(*launcher, *UNEDITED, script, "--save", tmp_path / "weights")
    assert_trained(tmp_path / "weights", weights_by_ddp(script))


@of_each
@pytest.mark.cluster
@pytest.mark.skipif(slurm_cluster.why_none() is not None, reason=slurm_cluster.why_none() or "-")
def test_an_unedited_script_runs_by_srun_on_two_nodes(
    script: Path, tmp_path: Path, weights_by_ddp: Callable[[Path], Weights]
) -> None:
    with slurm_cluster.cluster(tmp_path, slurm_cluster.nodes_here(2), processors=2) as variables:
        ranks = ["srun", "--nodes=2", "--ntasks=2", *UNEDITED, script, "--save", tmp_path / "weights"]
        assert "ranks 2" in run(*ranks, variables=variables)
    assert_trained(tmp_path / "weights", weights_by_ddp(script))


def test_an_unedited_script_runs_alone(tmp_path: Path) -> None:
    assert "ranks 1 average 1.0" in run(*UNEDITED, FOLDER / "digits.py", "--save", tmp_path / "weights")


@pytest.mark.thorough
def test_an_unedited_script_runs_where_variables_of_mpirun_say_which_rank_it_is(tmp_path: Path) -> None:
    variables = {"PMIX_NAMESPACE": f"test-{os.getpid()}", "OMPI_COMM_WORLD_SIZE": "2"}
    command = [*UNEDITED, str(FOLDER / "digits.py"), "--save", str(tmp_path / "weights")]
    ranks = [
        subprocess.Popen(
            command,
            env=environment() | variables | {"OMPI_COMM_WORLD_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=_TIMEOUT_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "ranks 2 average 1.5" in outputs[0]


CALLER = """
import horovod
import horovod.torch as hvd

def train(scale, offset=0):
    hvd.init()
    return [hvd.rank(), hvd.allreduce(__import__("torch").ones(2) * scale, op=hvd.Sum) + offset]

if __name__ == "__main__":
    print(horovod.run(train, args=(3.0,), kwargs={"offset": 1}, num_proc=2))
"""


def test_a_function_runs_at_every_rank(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    out = run(sys.executable, "-m", "agspeed.horovod", tmp_path / "caller.py")
    assert "[[0, tensor([7., 7.])], [1, tensor([7., 7.])]]" in out
