# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster for a test: munged, slurmctld and a slurmd per node, in a folder of their own.

Nodes are on this host, or each one is a host of a test bed (`agspeed.netbed`). The controller is on the first node.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agspeed import netbed
from agspeed.netbed import system

__all__ = ["Node", "cluster", "nodes_here", "nodes_of", "why_none"]

_DAEMONS = ("munged", "slurmctld", "slurmd")
_START_S, _END_S = 30, 10
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))  # Debian's folder for daemons


def why_none() -> str | None:
    """Returns why no cluster can be started here, or None."""
    missing = [name for name in (*_DAEMONS, "srun", "sinfo") if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"Slurm's {', '.join(missing)} are not on this machine: `make setup-cluster` installs them"
    return None if os.geteuid() == 0 else "slurmd has to be started by root"


@dataclass(frozen=True)
class Node:
    """A node of a cluster. Slurm lists nodes in the order of their names.

    Attributes:
        enter: returns the command line that runs a command on the node.
    """

    name: str
    address: str
    enter: Callable[[Sequence[str]], list[str]] = list


def nodes_here(count: int) -> list[Node]:
    """Nodes that share this host. Only the first one's name resolves."""
    name = socket.gethostname()
    return [Node(name if index == 0 else f"{name}-{index + 1}", "127.0.0.1") for index in range(count)]


def nodes_of(bed: netbed.Netbed) -> list[Node]:
    """A node for each host of a bed."""
    return [_node_of(host, bed.scratch / "hosts") for host in bed.hosts]


def _node_of(host: netbed.Host, names: Path) -> Node:
    return Node(
        host.name, host.rails[0].ipv4, lambda command: system.on_host(host.namespace, host.name, names, command)
    )


@contextlib.contextmanager
def cluster(folder: Path, nodes: Sequence[Node], processors: int) -> Iterator[dict[str, str]]:
    """Runs a cluster for the length of the block. Yields variables by which srun finds it on a node."""
    key, munge = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    ports = _free_ports(len(nodes) + 1)
    config = folder / "slurm.conf"
    config.write_text(_config(folder, munge, nodes, ports, processors))
    # slurmd looks for the kind of cgroups otherwise, and /sys of a namespace has none.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    environment = {"SLURM_CONF": str(config), "PATH": _PATH}
    munged = ["munged", f"--key-file={key}", f"--socket={munge}"]
    munged += [f"--{name}-file={folder / 'munged'}.{name}" for name in ("pid", "log", "seed")]
    munged += ["--force", "--foreground"]
    with contextlib.ExitStack() as running:
        running.enter_context(_process("munged", munged, environment, folder))
        _wait(munge.exists, folder)
        running.enter_context(_process("slurmctld", nodes[0].enter(["slurmctld", "-D"]), environment, folder))
        for node in nodes:
            command = node.enter(["slurmd", "-D", "-N", node.name])
            running.enter_context(_process(f"slurmd-{node.name}", command, environment, folder))
        _wait(lambda: _num_idle(nodes[0], environment) == len(nodes), folder)
        yield environment


def _config(folder: Path, munge: Path, nodes: Sequence[Node], ports: Sequence[int], processors: int) -> str:
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={nodes[0].name}({nodes[0].address})",
        "SlurmUser=root",
        f"SlurmctldPort={ports[0]}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={munge},cred_expire=5",  # a job that is requeued waits for the end of its credential
        f"StateSaveLocation={folder / 'state'}",
        f"SlurmdSpoolDir={folder / 'spool-%n'}",
        f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
        f"SlurmdPidFile={folder / 'slurmd-%n.pid'}",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SlurmdParameters=config_overrides",  # allows more processors than the host has
        "MpiDefault=none",
    ]
    for node, port in zip(nodes, ports[1:], strict=True):
        lines.append(f"NodeName={node.name} NodeAddr={node.address} Port={port} CPUs={processors}")
    (folder / "state").mkdir()
    return "\n".join([*lines, "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""])


@contextlib.contextmanager
def _process(name: str, command: Sequence[str], environment: dict[str, str], folder: Path) -> Iterator[None]:
    with (folder / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(condition: Callable[[], bool], folder: Path) -> None:
    until = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > until:
            said = "\n".join(f"{path.name}: {path.read_text()}" for path in sorted(folder.glob("*.out")))
            raise TimeoutError(f"Slurm has not started within {_START_S} s:\n{said}")
        time.sleep(0.1)


def _num_idle(node: Node, environment: dict[str, str]) -> int:
    command = node.enter(["sinfo", "--noheader", "--Node", "--format=%t"])
    found = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    return found.stdout.split().count("idle")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
