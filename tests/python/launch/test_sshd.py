# SPDX-License-Identifier: Apache-2.0
"""Jobs on several hosts with the real ssh and sshd, in network namespaces. The launcher runs on the first host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed.launch import keeper
from tests.python.launch.jobs import RANK, TIMEOUT_S, WAITS, wait_until
from tests.python.support.ssh_hosts import SshHosts, ssh_hosts, unavailable

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
_HOSTS = "root@host0:2,host1:2"


class Jobs:
    """Jobs of `agspeed run`. The launcher runs on the first host."""

    def __init__(self, hosts: SshHosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.launcher: subprocess.Popen[bytes] | None = None
        self._num_started = 0

    def start(self, text: str, *options: str, hosts: str = _HOSTS) -> subprocess.Popen[bytes]:
        """Starts ranks that run the Python `text`, in a folder of their own."""
        self._num_started += 1
        self.job = self.folder / f"job{self._num_started}"
        self.job.mkdir()
        command = [sys.executable, "-m", "agspeed", "run", "-H", hosts, *options, sys.executable, "-c", text]
        with (self.job / "out").open("wb") as out, (self.job / "err").open("wb") as err:
            self.launcher = self.hosts.start(command, out, err, FOLDER=str(self.job))
        return self.launcher

    def run(
        self, text: str, *options: str, hosts: str = _HOSTS, timeout_s: float = TIMEOUT_S
    ) -> tuple[int, list[str], str]:
        """Returns the status, the sorted lines of stdout, and stderr."""
        status = self.start(text, *options, hosts=hosts).wait(timeout_s)
        self.hosts.nothing_is_left()
        return status, sorted((self.job / "out").read_text().splitlines()), self.errors()

    def errors(self) -> str:
        return (self.job / "err").read_text()

    def ranks(self) -> list[int]:
        """The process ids of the ranks that wait (`WAITS`), by rank."""
        return [int(path.read_text()) for path in sorted(self.job.glob("rank.*"))]

    def begin(self) -> subprocess.Popen[bytes]:
        launcher = self.start(WAITS)
        wait_until(lambda: len(self.ranks()) == 4, "all ranks run")
        return launcher

    def close(self) -> None:
        if self.launcher is not None and self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
        self.hosts.end_all()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if reason := unavailable():
        pytest.skip(reason)
    with ssh_hosts(4, tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.fixture
def jobs(hosts: SshHosts, tmp_path: Path) -> Iterator[Jobs]:
    hosts.know_all()
    found = Jobs(hosts, tmp_path)
    yield found
    found.close()


def test_ranks_of_both_hosts_reduce_over_the_network(jobs: Jobs) -> None:
    text = """
import os, socket, torch, agspeed
from torch import distributed
distributed.init_process_group("agspeed")
total = torch.ones(1)
distributed.all_reduce(total)
print(socket.gethostname(), os.environ["RANK"], os.environ["MASTER_ADDR"], total.item())
distributed.destroy_process_group()
"""
    status, out, err = jobs.run(text)
    assert status == 0, err
    assert out == [f"[{rank}]<stdout>:host{rank // 2} {rank} {jobs.hosts.address(0)} 4.0" for rank in range(4)]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_four_hosts_train_to_the_weights_of_one(jobs: Jobs) -> None:
    text = """
import hashlib, os, torch, agspeed
from torch import distributed, nn
torch.set_num_threads(1)
distributed.init_process_group("agspeed")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(10):
    torch.manual_seed(1000 * step + distributed.get_rank())
    optimizer.zero_grad()
    wrapped(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
weights = torch.cat([each.detach().flatten() for each in model.parameters()])
print(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
if distributed.get_rank() == 0:
    torch.save(weights, os.environ["FOLDER"] + "/weights.pt")
distributed.destroy_process_group()
"""
    found = []
    for hosts in ("root@host0:1,host1:1,host2:1,host3:1", "root@host0:4"):
        status, out, err = jobs.run(text, hosts=hosts, timeout_s=400)
        assert status == 0, err
        assert len(out) == 4 and len({line.partition(":")[2] for line in out}) == 1, f"ranks have other weights: {out}"
        found.append(torch.load(jobs.job / "weights.pt", weights_only=True))
    print(f"bit-equal: {torch.equal(*found)}")
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)  # sums of other orders


def test_the_first_host_may_be_the_launchers_own(jobs: Jobs) -> None:
    text = "import os, socket; print(socket.gethostname(), os.environ['MASTER_ADDR'], os.getcwd())"
    status, out, err = jobs.run(text, hosts="host0:1,host1:1")
    assert (status, err) == (0, "")
    assert out == [f"[{rank}]<stdout>:host{rank} {jobs.hosts.address(0)} {Path.cwd()}" for rank in range(2)]


def test_a_rank_that_fails_ends_the_ranks_of_the_other_host(jobs: Jobs) -> None:
    status, _, err = jobs.run(RANK + "if rank == '3': raise SystemExit('no more data')\ntime.sleep(600)")
    assert status == 1
    assert err.endswith(
        "rank 3 on host host1 ended with status 1, so the job was ended; its last lines:\n  no more data\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_all_ranks(jobs: Jobs, number: int) -> None:
    launcher = jobs.begin()
    launcher.send_signal(number)
    assert launcher.wait(TIMEOUT_S) == (-number if number == signal.SIGKILL else 130)
    jobs.hosts.nothing_is_left()
    assert jobs.errors() == ""


def test_a_lost_connection_ends_the_job(jobs: Jobs) -> None:
    launcher = jobs.begin()
    clients = [pid for pid, each in keeper.processes().items() if each.parent == launcher.pid]
    client = next(pid for pid in clients if b"\0host1\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(client, signal.SIGKILL)
    assert launcher.wait(TIMEOUT_S) == 1
    jobs.hosts.nothing_is_left()
    assert "host host1 (ranks 2 to 3) was lost, so the job was ended: ssh: it ended by signal SIGKILL" in jobs.errors()


def test_a_cut_network_ends_the_job_on_both_sides(jobs: Jobs) -> None:
    launcher = jobs.begin()
    with jobs.hosts.cut(1):
        assert launcher.wait(TIMEOUT_S) == 1
        jobs.hosts.nothing_is_left()
    assert "host host1 (ranks 2 to 3) was lost, so the job was ended: ssh: the connection has ended" in jobs.errors()


def test_a_wrong_key_is_named(jobs: Jobs) -> None:
    config = jobs.hosts.folder / "ssh_config"
    before = config.read_text()
    config.write_text(before.replace("/user\n", "/other\n"))
    try:
        status, out, err = jobs.run("print('has run')")
        assert jobs.run("print('has run')", "-i", str(jobs.hosts.folder / "user"))[0] == 0
    finally:
        config.write_text(before)
    assert (status, out) == (1, [])
    assert "cannot be reached: ssh: root@host" in err and "Permission denied (publickey)" in err
    assert "name the key of your user there with --ssh-identity-file" in err


def test_a_host_with_another_key_than_before_is_refused(jobs: Jobs) -> None:
    jobs.hosts.know(host0="host0", host1="other")
    status, out, err = jobs.run("print('has run')")
    assert (status, out) == (1, [])
    assert "host host1 (ranks 2 to 3) cannot be reached: ssh: Host key verification failed; the host has another" in err


def test_a_host_that_is_not_known_is_refused(jobs: Jobs) -> None:
    jobs.hosts.know(host0="host0")
    status, out, err = jobs.run("print('has run')")
    assert (status, out) == (1, [])
    assert (
        "host host1 (ranks 2 to 3) cannot be reached: ssh: Host key verification failed; the host's key is not" in err
    )


def test_a_port_without_sshd_is_named(jobs: Jobs) -> None:
    status, out, err = jobs.run("print('has run')", "--ssh-port", "23", hosts="host0:2,host1:2")
    assert (status, out) == (1, [])
    assert (
        "ssh: connect to host host1 port 23: Connection refused; start sshd there, or name its port with --ssh" in err
    )
