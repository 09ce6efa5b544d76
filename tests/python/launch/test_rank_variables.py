# SPDX-License-Identifier: Apache-2.0
"""init_process_group finds the rank that a launcher other than torchrun has given to a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import agspeed
from agspeed.errors import UserError
from agspeed.horovod.environment import torchruns_variables
from tests.lint import sources

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
_PROGRAM = """
import os
import agspeed
from torch import distributed
distributed.init_process_group("gloo")
print(distributed.get_rank(), distributed.get_world_size(), os.environ["LOCAL_RANK"])
"""
_TASK = {
    "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "node0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
}  # fmt: skip


@pytest.fixture
def without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agspeed.__version__, "agspeed is imported"
    for name in torchruns_variables(_TASK):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("without_a_launcher")
def test_a_task_of_srun_is_a_rank() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=os.environ | {"PYTHONPATH": str(sources.ROOT / "python")} | _TASK,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "0 1 0\n"), done.stderr


@pytest.mark.usefixtures("without_a_launcher")
def test_a_launcher_that_does_not_say_where_ranks_meet_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("SIZE", "2"), ("LOCAL_SIZE", "1")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    with pytest.raises(UserError, match="rank 1 of 2 does not know where to find the others: set MASTER_ADDR"):
        next(torch.distributed.rendezvous("env://"))


@pytest.mark.usefixtures("without_a_launcher")
def test_without_a_launcher_torch_says_which_variable_is_missing() -> None:
    with pytest.raises(ValueError, match="environment variable RANK expected, but not set"):
        next(torch.distributed.rendezvous("env://"))
