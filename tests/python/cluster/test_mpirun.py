# SPDX-License-Identifier: Apache-2.0
"""Training under a real mpirun, which starts ranks on two hosts by a real ssh and sshd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.lint import sources
from tests.python.cluster import training
from tests.python.launch.jobs import wait_until
from tests.python.support.processes import is_alive
from tests.python.support.ssh_hosts import SshHosts, ssh_hosts, unavailable

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not on this machine: run make setup-cluster"),
]
_MPIRUN = ("mpirun", "--allow-run-as-root", "-H", "host0:2,host1:2", "-x", "MASTER_ADDR=host0", "-x", "PYTHONPATH")
_NUM_STEPS = 10
_TIMEOUT_S = 600
"""Loading torch takes long on a busy machine."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if reason := unavailable():
        pytest.skip(reason)
    with ssh_hosts(2, tmp_path_factory.mktemp("hosts")) as found:
        yield found
        found.end_all()


def start(hosts: SshHosts, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Starts the training on two ranks of each host. Its output goes to `folder`/said."""
    command = [*_MPIRUN, sys.executable, training.__file__, str(folder), str(_NUM_STEPS), *words]
    with (folder / "said").open("wb") as file:
        return hosts.start(
            command, file, file, PYTHONPATH=f"{sources.ROOT / 'python'}:{sources.ROOT}", OMP_NUM_THREADS="1"
        )


@pytest.mark.usefixtures("one_thread")
def test_ranks_of_mpirun_train_to_the_weights_of_one_process(hosts: SshHosts, tmp_path: Path) -> None:
    assert start(hosts, tmp_path).wait(_TIMEOUT_S) == 0, (tmp_path / "said").read_text()
    hosts.nothing_is_left()
    found = [(tmp_path / f"rank.{rank}").read_text().split()[0] for rank in range(4)]
    assert found == ["host0", "host0", "host1", "host1"]
    expected = training.weights_of_one_process(4, _NUM_STEPS)
    torch.testing.assert_close(torch.load(tmp_path / "weights.pt"), expected, rtol=1e-5, atol=1e-6)


def test_a_rank_that_is_killed_ends_the_job(hosts: SshHosts, tmp_path: Path) -> None:
    mpirun = start(hosts, tmp_path, str(_NUM_STEPS // 2))
    wait_until((tmp_path / "waits").exists, "the ranks wait", _TIMEOUT_S)
    os.kill(int((tmp_path / "rank.3").read_text().split()[1]), signal.SIGKILL)
    assert mpirun.wait(_TIMEOUT_S) != 0
    hosts.nothing_is_left()


@pytest.mark.thorough
def test_a_host_that_is_lost_ends_the_ranks(hosts: SshHosts, tmp_path: Path) -> None:
    """mpirun itself waits until the host is there again."""
    mpirun = start(hosts, tmp_path, str(_NUM_STEPS // 2))
    wait_until((tmp_path / "waits").exists, "the ranks wait", _TIMEOUT_S)
    pids = [int((tmp_path / f"rank.{rank}").read_text().split()[1]) for rank in range(4)]
    with hosts.cut(1):
        wait_until(lambda: not any(map(is_alive, pids)), "no rank is left", _TIMEOUT_S)
    assert mpirun.wait(_TIMEOUT_S) != 0
    hosts.nothing_is_left()
    said = (tmp_path / "said").read_text()
    assert "rank 2 is lost" in said or "rank 3 is lost" in said, said
