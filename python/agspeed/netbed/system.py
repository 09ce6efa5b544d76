# SPDX-License-Identifier: Apache-2.0
"""The only place that talks to `ip` and `tc`: namespaces of this process, made, listed and removed again.

Namespaces and scratch folders are named agspeed-<process id>-<serial>-<role>, so that whatever a killed process left
behind is recognised and removed by the next one (`sweep`). Every call is bounded in time.
Thread-safety: none of its own; callers own their namespaces.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agspeed.errors import AgspeedError

__all__ = [
    # keep-sorted
    "NetbedError",
    "destroy",
    "ip",
    "new_prefix",
    "new_scratch",
    "on_host",
    "run",
    "sweep",
    "tc",
    "tool",
    "trial",
    "unavailable",
    "user_namespace",
]

_NAMED = Path("/var/run/netns")  # where `ip netns` keeps them
_NAME = re.compile(r"agspeed-(\d+)-(\d+)-\w+")  # of namespaces and scratch folders
_COMMAND_LIMIT_S = 30.0
_EXIT_LIMIT_S = 5.0
_serials = itertools.count()
_issued: set[str] = set()


class NetbedError(AgspeedError):
    """Something the test bed needed did not work: a command, a host's process, or a limit in time."""


@functools.cache
def tool(name: str, package: str) -> str:
    """The program's path, also where it lies outside an ordinary user's PATH; NetbedError names the Debian package."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if path is None:
        raise NetbedError(f"{name} is not installed; the Debian package {package} provides it")
    return path


def run(*command: str, text: str | None = None) -> str:
    """Runs a short command and returns its output. Its own session keeps a terminal's Ctrl-C from cutting it short."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        raise NetbedError(f"`{' '.join(command)}` did not finish within {_COMMAND_LIMIT_S:g} s") from None
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise NetbedError(f"`{' '.join(command)}` failed: {reason}{f' (input: {text.strip()})' if text else ''}")
    return done.stdout


def ip(namespace: str, lines: Iterable[str]) -> None:
    """Carries out `ip` commands inside a namespace, all in one process."""
    run(tool("ip", "iproute2"), "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def tc(namespace: str, lines: Iterable[str]) -> None:
    """Carries out `tc` commands inside a namespace, all in one process."""
    run(tool("tc", "iproute2"), "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def on_host(namespace: str, name: str, hosts_file: Path, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a namespace, on a host called `name` whose /etc/hosts is that file."""
    script = 'echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
    inside = [tool("unshare", "util-linux"), "--uts", "sh", "-c", script, "sh", name, str(hosts_file), *command]
    return [tool("ip", "iproute2"), "netns", "exec", namespace, *inside]


def new_prefix() -> str:
    """What the names of one bed's namespaces start with; unique on this machine while this process lives."""
    prefix = f"agspeed-{os.getpid()}-{next(_serials)}"
    _issued.add(prefix)
    return prefix


def new_scratch(prefix: str) -> Path:
    """A private folder for files of the bed with this prefix; `destroy` removes it."""
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-"))


def destroy(prefix: str) -> None:
    """Ends the processes in every namespace with this prefix, then removes the namespaces and with them their links."""
    for name in _names():
        if name.startswith(f"{prefix}-"):
            _destroy_one(name)
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Removes what processes left behind that no longer exist (killed ones: everybody else cleans up)."""
    folders = [folder.name for folder in Path(tempfile.gettempdir()).glob("agspeed-*")]
    matches = filter(None, map(_NAME.fullmatch, [*_names(), *folders]))
    for prefix in {match[0].rpartition("-")[0] for match in matches if not _in_use(int(match[1]), match[0])}:
        with contextlib.suppress(NetbedError):  # another process may be sweeping as well
            destroy(prefix)


@contextlib.contextmanager
def trial() -> Iterator[tuple[str, Path]]:
    """A namespace with an interface "probe" whose packets can be filtered, and a scratch folder, to try things in."""
    prefix = new_prefix()
    name = f"{prefix}-probe"
    try:
        run(tool("ip", "iproute2"), "netns", "add", name)
        ip(name, ["link add bridge type bridge", "link add probe type veth peer name peer"])
        tc(name, ["qdisc add dev probe clsact"])
        yield name, new_scratch(prefix)
    finally:
        with contextlib.suppress(NetbedError):
            destroy(prefix)


@functools.cache
def unavailable() -> str | None:
    """Why no test bed can be built here, in one sentence; None if it can. Tried once per process."""
    try:
        with trial() as (name, _):
            tc(name, ["qdisc add dev probe root tbf rate 1mbit burst 128kb latency 20ms"])
            tc(name, ["filter add dev probe ingress bpf da bytecode '1,6 0 0 0,'"])
    except NetbedError as error:
        how = "" if os.geteuid() == 0 else "; without root, run it under: " + shlex.join(user_namespace(["COMMAND"]))
        return f"network namespaces with shaped links are not possible here: {error}{how}"
    return None


def user_namespace(command: Sequence[str]) -> list[str]:
    """The command line that gives an ordinary user's command a user namespace in which a bed can be built."""
    script = 'mount -t tmpfs tmpfs /run && exec "$@"'
    return [tool("unshare", "util-linux"), "--map-root-user", "--net", "--mount", "sh", "-c", script, "sh", *command]


def _names() -> list[str]:
    return sorted(os.listdir(_NAMED)) if _NAMED.is_dir() else []


def _in_use(pid: int, name: str) -> bool:
    if pid == os.getpid():  # ours, unless an earlier process had the same id
        return any(name.startswith(f"{prefix}-") for prefix in _issued)
    return Path(f"/proc/{pid}").exists()


def _destroy_one(name: str) -> None:
    program = tool("ip", "iproute2")
    deadline = time.monotonic() + _EXIT_LIMIT_S
    while inside := [int(pid) for pid in run(program, "netns", "pids", name).split()]:
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise NetbedError(f"processes {inside} in namespace {name} do not end on SIGKILL")
        time.sleep(0.005)
    run(program, "netns", "del", name)
