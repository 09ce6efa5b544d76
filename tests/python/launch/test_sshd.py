# SPDX-License-Identifier: Apache-2.0
"""Jobs on two hosts with the real ssh and sshd, in network namespaces. The launcher runs on the first host."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agspeed import netbed
from agspeed.launch import keeper
from agspeed.netbed import system
from tests.lint import sources
from tests.python.launch.jobs import RANK, TIMEOUT_S, WAITS, wait_until

pytestmark = pytest.mark.slow
_SSHD = shutil.which("sshd", path="/usr/sbin:/sbin")
_HOSTS = "root@host0:2,host1:2"
# Each host has a /run of its own, with a folder for its sshd alone.
_SERVE = "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec {sshd} -D -e -f {config} -h {keys}/$(hostname)"
_CONFIG = """
AuthorizedKeysFile {keys}/user.pub
KbdInteractiveAuthentication no
LogLevel VERBOSE
PasswordAuthentication no
PermitRootLogin yes
PidFile none
StrictModes no
UsePAM no
"""
_CLIENT = """
IdentitiesOnly yes
IdentityFile {keys}/user
GlobalKnownHostsFile /dev/null
UserKnownHostsFile {keys}/known
"""


class Hosts:
    """Two hosts that accept logins, and a launcher on the first one."""

    def __init__(self, bed: netbed.Netbed, folder: Path) -> None:
        self.bed, self.folder = bed, folder
        self.address = str(ipaddress.ip_address(bed.hosts[0].rails[0].ipv6))  # ssh prefers it
        self.launcher: subprocess.Popen[bytes] | None = None
        self._num_started = 0
        self._make_keys()
        self._serve()
        self._before = self.processes()

    def start(self, text: str, *options: str, hosts: str = _HOSTS) -> subprocess.Popen[bytes]:
        """Starts ranks that run the Python `text`, in a folder of their own."""
        self._num_started += 1
        self.job = self.folder / f"job{self._num_started}"
        self.job.mkdir()
        command = [sys.executable, "-m", "agspeed", "run", "-H", hosts, *options, sys.executable, "-c", text]
        path = f"{self.folder}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGSPEED_", "HOROVOD_"))}
        kept |= {"PYTHONPATH": str(sources.ROOT / "python"), "PATH": path, "FOLDER": str(self.job)}
        first = self.bed.hosts[0]
        with (self.job / "out").open("wb") as out, (self.job / "err").open("wb") as err:
            self.launcher = subprocess.Popen(
                system.on_host(first.namespace, first.name, self.bed.scratch / "hosts", command),
                env=kept,
                stdout=out,
                stderr=err,
            )
        return self.launcher

    def run(self, text: str, *options: str, hosts: str = _HOSTS) -> tuple[int, list[str], str]:
        """Returns the status, the sorted lines of stdout, and stderr."""
        status = self.start(text, *options, hosts=hosts).wait(TIMEOUT_S)
        self.nothing_is_left()
        return status, sorted((self.job / "out").read_text().splitlines()), self.errors()

    def errors(self) -> str:
        return (self.job / "err").read_text()

    def ranks(self) -> list[int]:
        """The process ids of the ranks that wait (`WAITS`), by rank."""
        return [int(path.read_text()) for path in sorted(self.job.glob("rank.*"))]

    def processes(self) -> set[int]:
        """All processes on both hosts, except sshd, which keeps a cut connection for minutes."""
        program = system.tool("ip", "iproute2")
        shown = [system.run(program, "netns", "pids", host.namespace) for host in self.bed.hosts]
        return {pid for pid in set(map(int, " ".join(shown).split())) & keeper.processes().keys() if not _is_sshd(pid)}

    def nothing_is_left(self) -> None:
        wait_until(lambda: self.processes() <= self._before, "no process is left on any host")

    def close(self) -> None:
        if self.launcher is not None and self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
        with suppress(AssertionError):
            self.nothing_is_left()

    def _make_keys(self) -> None:
        for name in ("host0", "host1", "other", "user"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / name)]
            subprocess.run(make, check=True, timeout=TIMEOUT_S)
        (self.folder / "sshd_config").write_text(_CONFIG.format(keys=self.folder))
        (self.folder / "ssh_config").write_text(_CLIENT.format(keys=self.folder))
        self.know(host0="host0", host1="host1")
        program = self.folder / "ssh"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        program.chmod(0o755)

    def know(self, **keys: str) -> None:
        """Writes the file of known hosts. keys: the name of the key of each host."""
        lines = [f"{host} {(self.folder / f'{key}.pub').read_text()}" for host, key in keys.items()]
        (self.folder / "known").write_text("".join(lines))

    def _serve(self) -> None:
        script = _SERVE.format(sshd=_SSHD, config=self.folder / "sshd_config", keys=self.folder)
        listening: set[int] = set()
        self.bed.start(
            ["sh", "-c", script], on_line=lambda host, line: listening.add(host) if "Server listening" in line else None
        )
        wait_until(lambda: len(listening) == len(self.bed.hosts), "sshd listens on both hosts")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if os.geteuid() != 0:
        pytest.skip("only root can start sshd for these hosts")
    if _SSHD is None or shutil.which("ssh") is None:
        pytest.skip("sshd is not on this machine: `make setup-ssh` installs it")
    if reason := netbed.unavailable():
        pytest.skip(reason)
    with netbed.Netbed(hosts=2) as bed:
        yield Hosts(bed, tmp_path_factory.mktemp("hosts"))


@pytest.fixture
def hosts(both: Hosts) -> Iterator[Hosts]:
    both.know(host0="host0", host1="host1")
    yield both
    both.close()


def test_ranks_of_both_hosts_reduce_over_the_network(hosts: Hosts) -> None:
    text = """
import os, socket, torch, agspeed
from torch import distributed
distributed.init_process_group("agspeed")
total = torch.ones(1)
distributed.all_reduce(total)
print(socket.gethostname(), os.environ["RANK"], os.environ["MASTER_ADDR"], total.item())
distributed.destroy_process_group()
"""
    status, out, err = hosts.run(text)
    assert status == 0, err
    assert out == [f"[{rank}]<stdout>:host{rank // 2} {rank} {hosts.address} 4.0" for rank in range(4)]


def test_the_first_host_may_be_the_launchers_own(hosts: Hosts) -> None:
    text = "import os, socket; print(socket.gethostname(), os.environ['MASTER_ADDR'], os.getcwd())"
    status, out, err = hosts.run(text, hosts="host0:1,host1:1")
    assert (status, err) == (0, "")
    assert out == [f"[{rank}]<stdout>:host{rank} {hosts.address} {Path.cwd()}" for rank in range(2)]


def test_a_rank_that_fails_ends_the_ranks_of_the_other_host(hosts: Hosts) -> None:
    status, _, err = hosts.run(RANK + "if rank == '3': raise SystemExit('no more data')\ntime.sleep(600)")
    assert status == 1
    assert err.endswith(
        "rank 3 on host host1 ended with status 1, so the job was ended; its last lines:\n  no more data\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_all_ranks(hosts: Hosts, number: int) -> None:
    launcher = _begin(hosts)
    launcher.send_signal(number)
    assert launcher.wait(TIMEOUT_S) == (-number if number == signal.SIGKILL else 130)
    hosts.nothing_is_left()
    assert hosts.errors() == ""


def test_a_lost_connection_ends_the_job(hosts: Hosts) -> None:
    launcher = _begin(hosts)
    clients = [pid for pid, each in keeper.processes().items() if each.parent == launcher.pid]
    client = next(pid for pid in clients if b"\0host1\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(client, signal.SIGKILL)
    assert launcher.wait(TIMEOUT_S) == 1
    hosts.nothing_is_left()
    assert "host host1 (ranks 2 to 3) was lost, so the job was ended: ssh: it ended by signal SIGKILL" in hosts.errors()


def test_a_cut_network_ends_the_job_on_both_sides(hosts: Hosts) -> None:
    launcher = _begin(hosts)
    rail = hosts.bed.hosts[1].rails[0]
    system.ip(rail.switch_namespace, [f"link set {rail.port} down"])
    try:
        assert launcher.wait(TIMEOUT_S) == 1
        hosts.nothing_is_left()
    finally:
        system.ip(rail.switch_namespace, [f"link set {rail.port} up"])
    assert "host host1 (ranks 2 to 3) was lost, so the job was ended: ssh: the connection has ended" in hosts.errors()


def test_a_wrong_key_is_named(hosts: Hosts) -> None:
    config = hosts.folder / "ssh_config"
    before = config.read_text()
    config.write_text(before.replace("/user\n", "/other\n"))
    try:
        status, out, err = hosts.run("print('has run')")
        assert hosts.run("print('has run')", "-i", str(hosts.folder / "user"))[0] == 0
    finally:
        config.write_text(before)
    assert (status, out) == (1, [])
    assert "cannot be reached: ssh: root@host" in err and "Permission denied (publickey)" in err
    assert "name the key of your user there with --ssh-identity-file" in err


def test_a_host_with_another_key_than_before_is_refused(hosts: Hosts) -> None:
    hosts.know(host0="host0", host1="other")
    status, out, err = hosts.run("print('has run')")
    assert (status, out) == (1, [])
    assert "host host1 (ranks 2 to 3) cannot be reached: ssh: Host key verification failed; the host has another" in err


def test_a_host_that_is_not_known_is_refused(hosts: Hosts) -> None:
    hosts.know(host0="host0")
    status, out, err = hosts.run("print('has run')")
    assert (status, out) == (1, [])
    assert (
        "host host1 (ranks 2 to 3) cannot be reached: ssh: Host key verification failed; the host's key is not" in err
    )


def test_a_port_without_sshd_is_named(hosts: Hosts) -> None:
    status, out, err = hosts.run("print('has run')", "--ssh-port", "23", hosts="host0:2,host1:2")
    assert (status, out) == (1, [])
    assert (
        "ssh: connect to host host1 port 23: Connection refused; start sshd there, or name its port with --ssh" in err
    )


def _is_sshd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sshd\n"
    except OSError:
        return False


def _begin(hosts: Hosts) -> subprocess.Popen[bytes]:
    launcher = hosts.start(WAITS)
    wait_until(lambda: len(hosts.ranks()) == 4, "all ranks run")
    return launcher
