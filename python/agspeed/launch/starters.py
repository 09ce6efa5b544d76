# SPDX-License-Identifier: Apache-2.0
"""How an agent is started on a host: as a child process here, by ssh elsewhere, or in a pod by `kubectl exec`.

A starter gives the command whose stdin and stdout are the agent's. It also explains why such a command has failed. A
new way to reach hosts is a new class here. Pure.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from agspeed.launch.hosts import Host
from agspeed.launch.ranks import ending

__all__ = ["Local", "PodExec", "Ssh", "Starter"]

_KEEP_ALIVE_S, _MOST_LOST = 5, 3
_CONNECT_S = 20
_SSH_FAILED = 255
_NOT_FOUND = 127
_AGENT_OF_OPEN_MPI = "OMPI_MCA_plm_rsh_agent"
_KUBEXEC, _KUBECTL = "/etc/mpi/kubexec.sh", "/opt/kube/kubectl"


class Starter(Protocol):
    """Starts programs on a host.

    Attributes:
        python: the interpreter that runs the agent.
        silence_s: after how many seconds without a frame the agent takes the launcher for lost; None if the end of its
            stdin always shows it.
    """

    @property
    def python(self) -> str: ...
    @property
    def silence_s(self) -> float | None: ...
    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """Returns the command that runs `words` on the host, with its own stdin, stdout and stderr."""

    def reason(self, host: Host, status: int, errors: Sequence[str]) -> str:
        """Says why the command ended, and what to do. errors: the last lines of its stderr."""

    def attempt(self, host: Host) -> str:
        """Returns a command with which the user can try the way to the host."""


@dataclass(frozen=True)
class Local:
    """Runs programs on this host."""

    python: str = sys.executable
    silence_s: float | None = None

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        return list(words)

    def reason(self, host: Host, status: int, errors: Sequence[str]) -> str:
        said = f" ({errors[-1]})" if errors else ""
        return f"the process that runs its ranks ended {ending(status)}{said}; start the job again"

    def attempt(self, host: Host) -> str:
        return "true"


@dataclass(frozen=True)
class Ssh:
    """Runs programs on other hosts by OpenSSH's client, without questions. The user's ssh settings apply.

    agspeed does not switch off the check of host keys. Nothing secret is on ssh's command line.
    """

    port: int | None = None
    identity_file: Path | None = None
    python: str = sys.executable
    silence_s: float | None = 30.0

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        # ssh passes one text to the user's shell on the host. By `exec` the shell becomes the program.
        return ["ssh", *self._options(), "--", host.name, f"exec {shlex.join(words)}"]

    def reason(self, host: Host, status: int, errors: Sequence[str]) -> str:
        silent = "the connection has ended" if status == _SSH_FAILED else f"it ended {ending(status)}"
        said = errors[-1].rstrip(".") if errors else f"{silent} without a message"
        return f"ssh: {said.removeprefix('ssh: ')}; {self._remedy(host, status, errors)}"

    def attempt(self, host: Host) -> str:
        return shlex.join(["ssh", *self._words_of_user(), host.name, "true"])

    def _options(self) -> list[str]:
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": _CONNECT_S,
            "ControlMaster": "no",
            "LogLevel": "ERROR",
            "ServerAliveCountMax": _MOST_LOST,
            "ServerAliveInterval": _KEEP_ALIVE_S,
        }
        words = ["-T", "-a", "-x", *(f"-o{name}={value}" for name, value in options.items())]
        if self.port is not None:
            words += ["-p", str(self.port)]
        if self.identity_file is not None:
            words += ["-i", str(self.identity_file)]
        return words

    def _remedy(self, host: Host, status: int, errors: Sequence[str]) -> str:
        text = "\n".join(errors)
        attempt = self.attempt(host)
        remedies = {
            "IDENTIFICATION HAS CHANGED": (
                "the host has another key than before: if you know why, remove the old one with ssh-keygen -R and "
                f"check the new one with: {attempt}"
            ),
            "Host key verification failed": f"the host's key is not known here: check and keep it with: {attempt}",
            "Permission denied": "name the key of your user there with --ssh-identity-file, or the user as USER@HOST",
            "Connection refused": "start sshd there, or name its port with --ssh-port",
            "Could not resolve hostname": "check the name in --hosts or the host file",
            "agspeed needs Python": "name an interpreter of such a version with --remote-python",
            "No module named": (
                f"{self.python} of that host has no agspeed {'or an older one' if 'launch' in text else 'there'}: "
                "install the version of this host, or name another interpreter with --remote-python"
            ),
        }
        found = [remedy for part, remedy in remedies.items() if part in text]
        if found:
            return found[0]
        if status == _NOT_FOUND:
            return f"{self.python} must exist there: name that host's interpreter with --remote-python"
        return f"try the connection alone: {attempt}" if status == _SSH_FAILED else f"see what this says: {attempt}"

    def _words_of_user(self) -> list[str]:
        words = ["-p", str(self.port)] if self.port is not None else []
        return words + (["-i", str(self.identity_file)] if self.identity_file is not None else [])


@dataclass(frozen=True)
class PodExec:
    """Runs programs in pods, as the launcher of an MPIJob of Kubeflow's v1 does. The host is the name of a pod.

    The operator's kubexec.sh passes no stdin on, so its kubectl is called directly.
    """

    kubectl: str = "kubectl"
    python: str = sys.executable
    silence_s: float | None = 30.0

    @classmethod
    def of_this_pod(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """Returns the starter if this is such a launcher, as the operator's variable for Open MPI says; else None."""
        if environ.get(_AGENT_OF_OPEN_MPI) != _KUBEXEC:
            return None
        return cls(_KUBECTL) if os.access(_KUBECTL, os.X_OK) else cls()

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        return [self.kubectl, "exec", "-i", host.name, "--", *words]

    def reason(self, host: Host, status: int, errors: Sequence[str]) -> str:
        silent = f"kubectl ended {ending(status)} without a message"
        said = errors[-1].rstrip(".") if errors else silent
        return f"{said}; {self._remedy(host, errors)}"

    def attempt(self, host: Host) -> str:
        return shlex.join([self.kubectl, "exec", host.name, "--", "true"])

    def _remedy(self, host: Host, errors: Sequence[str]) -> str:
        text = "\n".join(errors)
        remedies = {
            "orbidden": "the launcher needs the right to create pods/exec for this pod: look at its service account's "
            "role",
            "NotFound": "the pod is gone; look at it with kubectl get pods",
            "container not found": "the pod does not run yet, or does not run any more",
            "No module named": f"{self.python} of its image has no agspeed or an older one: use the launcher's image",
            "no such file": f"its image has no {self.python}: use the launcher's image, or --remote-python",
        }
        found = [remedy for part, remedy in remedies.items() if part in text]
        return found[0] if found else f"try the connection alone: {self.attempt(host)}"
