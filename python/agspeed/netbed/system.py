# SPDX-License-Identifier: Apache-2.0
"""Creates, lists and removes the namespaces of this process. Only this module calls `ip` and `tc`.

Namespaces and scratch folders are named agspeed-<process id>-<serial>-<role>. From the names, `sweep` in the next
process recognises the remains of a killed process and removes them. Every call has a time limit.
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
_NAME = re.compile(r"agspeed-(\d+)-(\d+)-\w+")  # matches namespaces and scratch folders
_COMMAND_LIMIT_S = 30.0
_EXIT_LIMIT_S = 5.0
_serials = itertools.count()
_issued: set[str] = set()


class NetbedError(AgspeedError):
    """A failure of the test bed: a command failed, a host's process failed, or a time limit passed."""


@functools.cache
def tool(name: str, package: str) -> str:
    """The program's path, even outside an ordinary user's PATH. Raises NetbedError that names the Debian package."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if path is None:
        raise NetbedError(f"{name} is not installed; the Debian package {package} provides it")
    return path


def run(*command: str, text: str | None = None) -> str:
    """Runs a short command and returns its output. It has its own session, so a terminal's Ctrl-C does not reach it."""
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
    """Runs `ip` commands inside a namespace, all in one process."""
    run(tool("ip", "iproute2"), "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def tc(namespace: str, lines: Iterable[str]) -> None:
    """Runs `tc` commands inside a namespace, all in one process."""
    run(tool("tc", "iproute2"), "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def on_host(namespace: str, name: str, hosts_file: Path, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a namespace, with the host name `name` and `hosts_file` as /etc/hosts.

    This process has to start it. The command ends together with the thread that starts it, or does not begin if this
    process has ended before.
    """
    script = '[ "$PPID" = "$1" ] && echo "$2" > /proc/sys/kernel/hostname && mount --bind "$3" /etc/hosts'
    arguments = [str(os.getpid()), name, str(hosts_file), *command]
    inside = [tool("unshare", "util-linux"), "--uts", "sh", "-c", f'{script} && shift 3 && exec "$@"', "sh", *arguments]
    ends_with_us = [tool("setpriv", "util-linux"), "--pdeathsig", "KILL"]
    return [*ends_with_us, tool("ip", "iproute2"), "netns", "exec", namespace, *inside]


def new_prefix() -> str:
    """Returns a prefix for the names of one bed's namespaces; unique on this machine while this process lives."""
    prefix = f"agspeed-{os.getpid()}-{next(_serials)}"
    _issued.add(prefix)
    return prefix


def new_scratch(prefix: str) -> Path:
    """A private folder for files of the bed with this prefix; `destroy` removes it."""
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-"))


def destroy(prefix: str) -> None:
    """Ends the processes in every namespace with this prefix, then removes the namespaces and their links."""
    for name in _names():
        if name.startswith(f"{prefix}-"):
            _destroy_one(name)
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Removes the namespaces and folders of processes that were killed; other processes clean up themselves."""
    folders = [folder.name for folder in Path(tempfile.gettempdir()).glob("agspeed-*")]
    matches = filter(None, map(_NAME.fullmatch, [*_names(), *folders]))
    for prefix in {match[0].rpartition("-")[0] for match in matches if not _in_use(int(match[1]), match[0])}:
        with contextlib.suppress(NetbedError):  # another process may be sweeping as well
            destroy(prefix)


@contextlib.contextmanager
def trial() -> Iterator[tuple[str, Path]]:
    """A namespace for trials with an interface "probe", whose packets can be filtered, and a scratch folder."""
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
    """Why no test bed can be built here, in one sentence; None if one can. Each process tries it once."""
    try:
        tool("setpriv", "util-linux")
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
    if pid == os.getpid():  # of this process, unless an earlier process had the same id
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
