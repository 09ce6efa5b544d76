# SPDX-License-Identifier: Apache-2.0
"""A kube-apiserver with its etcd for tests, in a network namespace of its own where only the loopback exists.

Nothing runs beside them: there is no controller, no scheduler and no kubelet. So objects are checked and stored, and no
pod ever starts. `make kube-testbed` builds the programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lint import sources

__all__ = ["ADMIN", "APPLY", "Answer", "Server", "server", "why_none"]

ADMIN = "admin"
APPLY = "application/apply-patch+yaml"
"""The kind of a body that the server compares with the fields it knows, as `kubectl apply --server-side` sends it."""
_PROGRAMS = Path(os.environ.get("AG_KUBE_TESTBED", sources.ROOT / "build/kube-testbed")) / "bin"
_TOOLS = ("ip", "nsenter", "openssl", "setpriv", "unshare")
_ADDRESS, _PORT, _ETCD = "127.0.0.1", 6443, "http://127.0.0.1:2379"
_START_S, _REQUEST_S = 300, 120  # a busy machine starts the server slowly
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of <sched.h>


def why_none() -> str | None:
    """Returns why no server can be started here, or None."""
    if not (_PROGRAMS / "kube-apiserver").is_file():
        return f"there is no kube-apiserver in {_PROGRAMS}: `make kube-testbed` builds it"
    if missing := [name for name in _TOOLS if shutil.which(name) is None]:
        return f"{', '.join(missing)} are not on this machine: `make kube-testbed` installs them"
    return None if os.geteuid() == 0 else "a network namespace for the server needs root"


@dataclass(frozen=True)
class Answer:
    """An answer of the server: its HTTP status, and an object or a message."""

    status: int
    content: Any

    @property
    def is_accepted(self) -> bool:
        return self.status in (200, 201)

    @property
    def message(self) -> str:
        return str(self.content.get("message", "")) if isinstance(self.content, dict) else str(self.content)


class Server:
    """A server that runs. Requests come from ADMIN, who may do everything, or from the owner of a token."""

    def __init__(self, folder: Path, network: Path, admin_token: str) -> None:
        self._network, self._admin = network, admin_token
        certificate = folder / "certificates/apiserver.crt"
        self._tls = ssl.create_default_context(cafile=str(certificate))
        self._kubectl = [str(_PROGRAMS / "kubectl"), f"--server=https://{_ADDRESS}:{_PORT}"]
        self._kubectl += [f"--certificate-authority={certificate}", f"--cache-dir={folder / 'kubectl'}"]

    def request(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", token: str = ADMIN
    ) -> Answer:
        """Sends one request. body: a text, or data that is sent as JSON."""
        content = body if isinstance(body, str) or body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self._token(token)}", "Content-Type": kind, "Accept": "application/json"}
        connection = http.client.HTTPSConnection(_ADDRESS, _PORT, timeout=_REQUEST_S)
        connection.sock = self._tls.wrap_socket(_connect(self._network), server_hostname=_ADDRESS)
        with contextlib.closing(connection):
            connection.request(method, path, content.encode() if content is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        return Answer(answer.status, json.loads(text) if text.startswith("{") else text)

    def make(self, path: str, body: Mapping[str, Any]) -> Any:
        """Creates an object that the server has to accept, and returns it."""
        answer = self.request("POST", path, body)
        assert answer.is_accepted, f"{path}: {answer}"
        return answer.content

    def kubectl(self, *words: str, text: str = "", token: str = ADMIN) -> subprocess.CompletedProcess[str]:
        """Runs kubectl beside the server."""
        return subprocess.run(
            self.kubectl_command(*words, token=token),
            input=text, capture_output=True, text=True, timeout=_REQUEST_S, check=False,
        )  # fmt: skip

    def kubectl_command(self, *words: str, token: str = ADMIN) -> list[str]:
        """Returns the command line that runs kubectl beside the server."""
        enter = ["nsenter", f"--net={self._network}"]
        return [*enter, *self._kubectl, f"--token={self._token(token)}", *words]

    def _token(self, token: str) -> str:
        return self._admin if token == ADMIN else token


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Runs a server for the length of the block, with its data, keys and certificates in `folder`."""
    folder.chmod(0o700)
    key, tokens, admin_token = folder / "accounts.key", folder / "tokens.csv", secrets.token_hex(32)
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=_START_S)
    tokens.write_text(f'{admin_token},admin,admin,"system:masters"\n')
    with contextlib.ExitStack() as running:
        etcd = running.enter_context(_process("etcd", _etcd_command(folder), folder))
        network = Path(f"/proc/{etcd.pid}/ns/net")
        _wait(lambda: _has_own_network(etcd, network) and _answers(network, 2379), [etcd], folder)
        command = ["nsenter", f"--net={network}", *_server_command(folder, key, tokens)]
        api = running.enter_context(_process("kube-apiserver", command, folder))
        _wait(lambda: _answers(network, _PORT), [etcd, api], folder)
        found = Server(folder, network, admin_token)
        _wait(lambda: found.request("GET", "/readyz").status == 200, [etcd, api], folder)
        yield found


def _etcd_command(folder: Path) -> list[str]:
    start = 'ip link set lo up && exec "$@"'
    words = ["unshare", "--net", "sh", "-c", start, "sh", str(_PROGRAMS / "etcd"), f"--data-dir={folder / 'etcd'}"]
    words += [f"--listen-client-urls={_ETCD}", f"--advertise-client-urls={_ETCD}"]
    return [*words, "--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync"]


def _server_command(folder: Path, key: Path, tokens: Path) -> list[str]:
    """The server makes its own certificate. Clients trust that one alone."""
    options = {
        "etcd-servers": _ETCD,
        "bind-address": _ADDRESS,
        "advertise-address": "192.0.2.1",  # an address that has to exist nowhere
        "endpoint-reconciler-type": "none",
        "secure-port": _PORT,
        "cert-dir": folder / "certificates",
        "authorization-mode": "RBAC",
        "anonymous-auth": "false",
        "token-auth-file": tokens,
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "service-cluster-ip-range": "10.0.0.0/24",
        "enable-admission-plugins": "PodSecurityPolicy",
    }
    return [str(_PROGRAMS / "kube-apiserver"), *(f"--{name}={value}" for name, value in options.items())]


@contextlib.contextmanager
def _process(name: str, command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process that ends with the block, and also if this process is killed."""
    with (folder / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(condition: Callable[[], bool], processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    until = time.monotonic() + _START_S
    while not condition():
        ended = [process.args for process in processes if process.poll() is not None]
        if ended or time.monotonic() > until:
            said = "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(folder.glob("*.out")))
            raise TimeoutError(f"the server has not started within {_START_S} s, or has ended: {ended}\n{said}")
        time.sleep(0.1)


def _has_own_network(process: subprocess.Popen[bytes], network: Path) -> bool:
    """Whether the process has left this network. Only then may it be asked at the loopback."""
    return process.poll() is None and os.readlink(network) != os.readlink("/proc/self/ns/net")


def _answers(network: Path, port: int) -> bool:
    try:
        _connect(network, port).close()
    except OSError:
        return False
    return True


def _connect(network: Path, port: int = _PORT) -> socket.socket:
    """Connects in a namespace. A thread enters it, because a socket stays in the namespace where it was made."""
    made: list[socket.socket | OSError] = []

    def connect() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            with network.open("rb") as entrance:
                if libc.setns(entrance.fileno(), _NEW_NETWORK) != 0:
                    raise OSError(ctypes.get_errno(), f"entering the network namespace {network}")
            made.append(socket.create_connection((_ADDRESS, port), _REQUEST_S))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]
