# SPDX-License-Identifier: Apache-2.0
"""Training in jobs of a real Slurm. Its two nodes are network namespaces, with the controller on the first one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native, netbed
from tests.lint import sources
from tests.python.cluster import training
from tests.python.launch.jobs import wait_until
from tests.python.support import slurm_cluster
from tests.python.support.processes import is_alive
from tests.python.support.slurm_cluster import Node

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
_NUM_STEPS = 10
_RANKS_OF_HOSTS = ("--nodes=2", "--ntasks-per-node=2")
_TIMEOUT_S = 600
"""Loading torch takes long on a busy machine."""


class Cluster:
    """A cluster of two nodes. Commands run on the first one."""

    def __init__(self, node: Node, variables: dict[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGSPEED_", "SLURM_"))}
        paths = f"{sources.ROOT / 'python'}:{sources.ROOT}"
        self._node, self._environment = node, kept | variables | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._node.enter([str(word) for word in words]),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str | Path) -> tuple[int, str]:
        """Returns the status and the output of a command."""
        process = self.start(*words)
        try:
            said = process.communicate(timeout=_TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, said

    def submit(self, folder: Path, script: str, *options: str) -> str:
        """Submits a batch script. Returns: the number of its job."""
        (folder / "job.sh").write_text(f"#!/bin/sh\n{script}\n")
        options = (*options, *_RANKS_OF_HOSTS, f"--output={folder}/output", "--open-mode=append")
        status, said = self.run("sbatch", "--parsable", *options, folder / "job.sh")
        assert status == 0, said
        return said.strip()

    def limit(self, job: str, minutes: int) -> None:
        """Changes the time limit of a job. Slurm refuses that for a moment while a step ends."""
        until = time.monotonic() + _TIMEOUT_S
        while self.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")[0] != 0:
            assert time.monotonic() < until, f"job {job} takes no time limit"
            time.sleep(0.5)

    def wait_for(self, job: str, folder: Path) -> str:
        """Waits until a job is over. Returns: its output."""
        until = time.monotonic() + _TIMEOUT_S
        while self.run("squeue", "--noheader", f"--jobs={job}")[1].strip():
            assert time.monotonic() < until, f"job {job} has not ended after {_TIMEOUT_S} s"
            time.sleep(1)
        return (folder / "output").read_text()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := slurm_cluster.why_none() or netbed.unavailable():
        pytest.skip(reason)
    with netbed.Netbed(hosts=2) as bed:
        nodes = slurm_cluster.nodes_of(bed)
        with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm"), nodes, processors=2) as variables:
            yield Cluster(nodes[0], variables)


def check(folder: Path) -> None:
    """Asserts that four ranks on two hosts have trained to the weights of one process."""
    found = [(folder / f"rank.{rank}").read_text().split()[0] for rank in range(4)]
    assert found == ["host0", "host0", "host1", "host1"]
    expected = training.weights_of_one_process(4, _NUM_STEPS)
    torch.testing.assert_close(torch.load(folder / "weights.pt"), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("one_thread")
def test_tasks_of_srun_train_to_the_weights_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    status, said = cluster.run("srun", *_RANKS_OF_HOSTS, sys.executable, training.__file__, tmp_path, str(_NUM_STEPS))
    assert status == 0, said
    check(tmp_path)


@pytest.mark.usefixtures("one_thread")
def test_a_notice_before_the_end_of_a_job_loses_no_step(cluster: Cluster, tmp_path: Path) -> None:
    command = f"{sys.executable} {training.__file__} {tmp_path} {_NUM_STEPS} {_NUM_STEPS // 2}"
    script = f"srun {command}\n[ $? -ne {training.AGAIN} ] || scontrol requeue $SLURM_JOB_ID"
    began = time.monotonic()
    job = cluster.submit(tmp_path, script, "--time=10:00:00", "--signal=USR1@3600", "--requeue")
    wait_until((tmp_path / "waits").exists, "the ranks wait for the notice", _TIMEOUT_S)
    minutes = int((time.monotonic() - began) / 60)
    cluster.limit(job, minutes + 30)  # less than an hour is left, so the notice is due
    wait_until((tmp_path / "checkpoint.pt").exists, "the ranks have left", _TIMEOUT_S)
    cluster.limit(job, 600)
    said = cluster.wait_for(job, tmp_path)
    first_steps = [(tmp_path / f"rank.{rank}").read_text().split()[-1] for rank in range(4)]
    assert first_steps == [str(_NUM_STEPS // 2)] * 4, said
    check(tmp_path)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not on this machine: run make setup-cluster")
def test_mpirun_in_a_batch_job_takes_its_hosts_from_slurm(cluster: Cluster, tmp_path: Path) -> None:
    command = f"{sys.executable} {training.__file__} {tmp_path} {_NUM_STEPS}"
    job = cluster.submit(tmp_path, f"mpirun --allow-run-as-root -x MASTER_ADDR=$(hostname) {command}")
    said = cluster.wait_for(job, tmp_path)
    assert (tmp_path / "weights.pt").exists(), said
    check(tmp_path)


def test_a_task_that_is_killed_ends_the_job(cluster: Cluster, tmp_path: Path) -> None:
    process = cluster.start(
        "srun", *_RANKS_OF_HOSTS, sys.executable, training.__file__, tmp_path, str(_NUM_STEPS), str(_NUM_STEPS // 2)
    )
    wait_until((tmp_path / "waits").exists, "the ranks wait", _TIMEOUT_S)
    os.kill(int((tmp_path / "rank.3").read_text().split()[1]), signal.SIGKILL)
    said = process.communicate(timeout=_TIMEOUT_S)[0]
    assert process.returncode != 0, said
    assert "rank 3" in said
    pids = [int((tmp_path / f"rank.{rank}").read_text().split()[1]) for rank in range(4)]
    wait_until(lambda: not any(map(is_alive, pids)), "no rank is left")
