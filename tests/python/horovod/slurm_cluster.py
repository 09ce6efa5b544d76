# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster for a test: munged, slurmctld and a slurmd per node, on this host and in a folder of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_DAEMONS = ("munged", "slurmctld", "slurmd")
_START_S, _END_S = 30, 10
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))  # Debian's folder for daemons


def why_none() -> str | None:
    """Returns why no cluster can be started here, or None."""
    missing = [name for name in (*_DAEMONS, "srun", "sinfo") if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"Slurm's {', '.join(missing)} are not on this machine: `make setup-slurm` installs them"
    return None if os.geteuid() == 0 else "slurmd has to be started by root"


@contextlib.contextmanager
def cluster(folder: Path, nodes: Sequence[str], processors: int) -> Iterator[dict[str, str]]:
    """Runs a cluster for the length of the block. Yields variables by which srun finds it.

    Slurm lists nodes in the order of their names. The names need not resolve.
    """
    key, munge = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    ports = _free_ports(len(nodes) + 1)
    config = folder / "slurm.conf"
    config.write_text(_config(folder, munge, nodes, ports, processors))
    environment = {"SLURM_CONF": str(config), "PATH": _PATH}
    munged = ["munged", f"--key-file={key}", f"--socket={munge}"]
    munged += [f"--{name}-file={folder / 'munged'}.{name}" for name in ("pid", "log", "seed")]
    munged += ["--force", "--foreground"]
    commands = [munged, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in nodes)]
    with contextlib.ExitStack() as running:
        for command in commands:
            running.enter_context(_process(command, environment, folder))
            if command is munged:
                _wait(munge.exists, folder)
        _wait(lambda: _num_idle(environment) == len(nodes), folder)
        yield environment


def _config(folder: Path, munge: Path, nodes: Sequence[str], ports: Sequence[int], processors: int) -> str:
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
        "SlurmUser=root",
        f"SlurmctldPort={ports[0]}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={munge}",
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
        lines.append(f"NodeName={node} NodeAddr=127.0.0.1 Port={port} CPUs={processors}")
    (folder / "state").mkdir()
    return "\n".join([*lines, "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""])


@contextlib.contextmanager
def _process(command: Sequence[str], environment: dict[str, str], folder: Path) -> Iterator[None]:
    with (folder / f"{command[0]}-{command[-1]}.out".replace("/", "")).open("wb") as out:
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


def _num_idle(environment: dict[str, str]) -> int:
    command = ["sinfo", "--noheader", "--Node", "--format=%t"]
    found = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    return found.stdout.split().count("idle")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
