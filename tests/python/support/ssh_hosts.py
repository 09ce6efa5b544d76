# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces, each with a real sshd that has its own host key, port and configuration.

All files are in one temporary folder, and nothing of the user's ssh settings is read. A folder of PATH has a program
`ssh` that knows these hosts. The hosts share this machine's files and process ids.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from agspeed import netbed
from agspeed.launch import keeper
from agspeed.netbed import system
from tests.lint import sources
from tests.python.launch.jobs import TIMEOUT_S, wait_until

__all__ = ["SshHosts", "ssh_hosts", "unavailable"]

_SSHD = shutil.which("sshd", path="/usr/sbin:/sbin")
# Each host has a /run of its own, with a folder for its sshd alone.
_SERVE = (
    "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && {prepare} && "
    "exec {sshd} -D -e -f {folder}/$(hostname).server"
)
_SERVER = """
AuthorizedKeysFile {folder}/user.pub
HostKey {folder}/{name}
KbdInteractiveAuthentication no
LogLevel VERBOSE
PasswordAuthentication no
PermitRootLogin yes
PidFile none
Port {port}
StrictModes no
UsePAM no
"""
_CLIENT = """
IdentitiesOnly yes
IdentityFile {folder}/user
GlobalKnownHostsFile /dev/null
UserKnownHostsFile {folder}/known
"""
_FIRST_PORT = 2200


def unavailable() -> str | None:
    """Why no such hosts can be made here, in one sentence; None if they can."""
    if os.geteuid() != 0:
        return "only root can start sshd for these hosts"
    if _SSHD is None or shutil.which("ssh") is None:
        return "sshd is not on this machine: `make setup-cluster` installs it"
    return netbed.unavailable()


class SshHosts:
    """Hosts host0, host1 and so on, which accept logins of root with one key. `ssh_hosts` makes them.

    Attributes:
        bed: the hosts.
        folder: with the keys host0, host1 and so on, `user`, and `other`, which no host accepts.
        environment: for commands on the hosts.
    """

    def __init__(self, bed: netbed.Netbed, folder: Path, prepare: str = "true") -> None:
        self.bed, self.folder = bed, folder
        self.names = [host.name for host in bed.hosts]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGSPEED_", "HOROVOD_"))}
        path = f"{folder}:{os.environ['PATH']}"
        self.environment = kept | {"PYTHONPATH": str(sources.ROOT / "python"), "PATH": path}
        self._make_keys()
        self._serve(prepare)
        self._before = self.processes()

    def address(self, index: int) -> str:
        """The address of a host that ssh prefers."""
        return str(ipaddress.ip_address(self.bed.hosts[index].rails[0].ipv6))

    def start(
        self, command: Sequence[str], out: IO[bytes], err: IO[bytes], index: int = 0, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Starts a command on a host, without ssh. It ends with the thread that starts it."""
        host = self.bed.hosts[index]
        return subprocess.Popen(
            system.on_host(host.namespace, host.name, self.bed.scratch / "hosts", command),
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )

    def processes(self, *indexes: int) -> set[int]:
        """All processes on these hosts, or on all, except sshd, which keeps a cut connection for minutes."""
        return {pid for pid in self._pids(indexes) if not _is_sshd(pid)}

    def logins(self, index: int) -> set[int]:
        """The processes of sshd on a host that serve a login."""
        return {pid for pid in self._pids([index]) if _words(pid).startswith(b"sshd: root@")}

    def agents(self, index: int) -> set[int]:
        """The agents of `agspeed run` on a host."""
        return {pid for pid in self.processes(index) if b"from agspeed.launch import agent" in _words(pid)}

    def nothing_is_left(self) -> None:
        wait_until(lambda: self.processes() <= self._before, "no process is left on any host")

    def end_all(self) -> None:
        """Ends all processes that tests have left. sshd stays."""
        for pid in self.processes() - self._before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def know(self, **keys: str) -> None:
        """Writes the file of known hosts. keys: the name of the key of each host."""
        lines = [
            f"[{host}]:{self._port(host)} {(self.folder / f'{key}.pub').read_text()}" for host, key in keys.items()
        ]
        (self.folder / "known").write_text("".join(lines))

    def know_all(self) -> None:
        self.know(**{name: name for name in self.names})

    @contextmanager
    def cut(self, index: int) -> Iterator[None]:
        """Cuts a host off the network."""
        rail = self.bed.hosts[index].rails[0]
        system.ip(rail.switch_namespace, [f"link set {rail.port} down"])
        try:
            yield
        finally:
            system.ip(rail.switch_namespace, [f"link set {rail.port} up"])

    def _port(self, name: str) -> int:
        return _FIRST_PORT + self.names.index(name)

    def _pids(self, indexes: Sequence[int]) -> set[int]:
        chosen = [self.bed.hosts[index] for index in indexes] or self.bed.hosts
        program = system.tool("ip", "iproute2")
        shown = [system.run(program, "netns", "pids", host.namespace) for host in chosen]
        return set(map(int, " ".join(shown).split())) & keeper.processes().keys()

    def _make_keys(self) -> None:
        for name in (*self.names, "other", "user"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / name)]
            subprocess.run(make, check=True, timeout=TIMEOUT_S)
        client = _CLIENT.format(folder=self.folder)
        for name in self.names:
            server = _SERVER.format(folder=self.folder, name=name, port=self._port(name))
            (self.folder / f"{name}.server").write_text(server)
            client += f"Host {name}\n    Port {self._port(name)}\n"
        (self.folder / "ssh_config").write_text(client)
        self.know_all()
        program = self.folder / "ssh"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        program.chmod(0o755)

    def _serve(self, prepare: str) -> None:
        script = _SERVE.format(sshd=_SSHD, folder=self.folder, prepare=prepare)
        listening: set[int] = set()
        self.bed.start(
            ["sh", "-c", script], on_line=lambda host, line: listening.add(host) if "Server listening" in line else None
        )
        wait_until(lambda: len(listening) == len(self.names), "sshd listens on all hosts")


@contextmanager
def ssh_hosts(count: int, folder: Path, prepare: str = "true", rails: int = 1) -> Iterator[SshHosts]:
    """Yields hosts whose files are in `folder`, with this many interfaces each. Call `unavailable` before.

    prepare: a command of the shell on each host before its sshd starts. Mounts are seen by logins only.
    """
    with netbed.Netbed(hosts=count, rails=rails) as bed:
        yield SshHosts(bed, folder, prepare)


def _is_sshd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sshd\n"
    except OSError:
        return False


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
