# SPDX-License-Identifier: Apache-2.0
"""Scripts in Horovod's published style, unedited by the alias and edited by the import, under several launchers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from agspeed import native
from tests.lint import sources
from tests.python.horovod import slurm_cluster

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.slow,  # every rank loads torch
]
_TIMEOUT_S = 120

SCRIPT = """
import argparse

import torch
import torch.nn.functional as F
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce_async
from horovod.common.exceptions import HorovodInternalError

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(42 + hvd.rank())
data = torch.utils.data.TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,)))
sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16, op=hvd.Average
)
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
checksum = sum(value.double().sum() for value in model.state_dict().values()).reshape(1)
everywhere = hvd.allgather(checksum, name="checksum")
accuracy = hvd.allreduce(torch.tensor(0.5 + hvd.rank()), name="avg_accuracy")
if hvd.rank() == 0:
    print("ranks", hvd.size(), "equal", bool((everywhere == everywhere[0]).all()), "accuracy", accuracy.item())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    path = tmp_path / "edited.py"
    path.write_text(
        SCRIPT.replace("horovod.common", "agspeed.horovod").replace("horovod.torch", "agspeed.horovod.torch")
    )
    return path


def run(*words: str | Path, variables: Mapping[str, str] | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    result = subprocess.run(
        [str(word) for word in words],
        env=environment
        | {"PYTHONPATH": str(sources.ROOT / "python"), "AGSPEED_SOCKET_IFNAME": "lo"}
        | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_an_unedited_script_runs_by_agspeed_run(script: Path) -> None:
    launcher = [sys.executable, "-m", "agspeed", "run", "-np", "2", "--as-horovod"]
    assert "ranks 2 equal True accuracy 1.0" in run(*launcher, sys.executable, script, "--epochs", "1")


def test_an_edited_script_runs_by_torchrun(edited: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert "ranks 2 equal True accuracy 1.0" in run(*launcher, edited)


def test_an_unedited_script_runs_alone(script: Path) -> None:
    assert "ranks 1 equal True accuracy 0.5" in run(sys.executable, "-m", "agspeed.horovod", script, "--epochs", "1")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun on this machine")
def test_an_unedited_script_runs_by_mpirun(script: Path) -> None:
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    assert "ranks 2 equal True accuracy 1.0" in run(
        *launcher, sys.executable, "-m", "agspeed.horovod", script, "--epochs", "1"
    )


@pytest.mark.skipif(slurm_cluster.why_none() is not None, reason=slurm_cluster.why_none() or "-")
def test_an_unedited_script_runs_by_srun_on_two_nodes(script: Path, tmp_path: Path) -> None:
    name = socket.gethostname()
    with slurm_cluster.cluster(tmp_path, [name, f"{name}-2"], processors=2) as variables:
        ranks = ["srun", "--nodes=2", "--ntasks=3", sys.executable, "-m", "agspeed.horovod", script, "--epochs", "1"]
        assert "ranks 3 equal True accuracy 1.5" in run(*ranks, variables=variables)


def test_an_unedited_script_runs_where_variables_of_mpirun_say_which_rank_it_is(script: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")} | {
        "PYTHONPATH": str(sources.ROOT / "python"),
        "AGSPEED_SOCKET_IFNAME": "lo",
        "PMIX_NAMESPACE": f"test-{os.getpid()}",
        "OMPI_COMM_WORLD_SIZE": "2",
    }
    command = [sys.executable, "-m", "agspeed.horovod", str(script), "--epochs", "1"]
    ranks = [
        subprocess.Popen(
            command, env=environment | {"OMPI_COMM_WORLD_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=_TIMEOUT_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "ranks 2 equal True accuracy 1.0" in outputs[0]


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
