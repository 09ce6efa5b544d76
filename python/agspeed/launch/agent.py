# SPDX-License-Identifier: Apache-2.0
"""The process that runs the ranks of one host for a launcher, which may be on another host.

    launcher -> agent -> keeper -> ranks        with ssh between launcher and agent on another host

It reads frames (`frames.py`) from stdin and writes frames to stdout: first the job, then what its ranks write, and how
they end. The launcher starts the ranks only when the agents of all hosts are ready. When stdin ends, because the
launcher has died or ssh has lost its connection, the agent ends its ranks. Members of an elastic job may go on for a
while (`member_agent.py`). The kernel ends ranks and members if the agent is killed (`ranks.py`).

It trusts the launcher, which is its own user. Threading: one thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from agspeed.errors import AgspeedError, UserError
from agspeed.launch import exchange, frames, job_key
from agspeed.launch.launcher_link import LauncherLink
from agspeed.launch.pipes import Pipes
from agspeed.launch.ranks import Ranks
from agspeed.version import __version__

__all__ = ["main", "words"]

_RUN = "from agspeed.launch import agent; sys.exit(agent.main())"
_HERE = f"import sys; sys.path.append(sys.argv[1]); {_RUN}"
# The folder is used only if it and all folders above it belong to this user or root, and others cannot write to it.
_ELSEWHERE = "; ".join(
    [
        "import os, pathlib, sys",
        "path = pathlib.Path(sys.argv[1])",
        "found = [os.lstat(each) for each in (path, *path.parents) if os.path.lexists(each)]",
        "is_whole = len(found) == len(path.parts)",
        "is_safe = is_whole and {each.st_uid for each in found} <= {0, os.getuid()} and not found[0].st_mode & 2",
        "sys.path += sys.argv[1:] if is_safe else []",
        _RUN,
    ]
)


def words(folder: str, is_local: bool) -> list[str]:
    """Returns the words behind `python` that run an agent.

    folder: the folder of the launcher's agspeed. On this host the agent uses it. On another host, the folder of that
        name may be someone else's. It is used if Python finds no agspeed there otherwise, and if no other user can have
        made it.
    """
    # -P keeps files of the working directory from taking the place of Python's modules. -S saves time.
    return ["-S", "-P", "-c", _HERE, folder] if is_local else ["-P", "-c", _ELSEWHERE, folder]


def _run(link: LauncherLink) -> None:
    """Runs one job, until its ranks have ended. Raises: ClosedError if the launcher or its connection is lost."""
    job = link.wait_for("job")
    link.limit_silence(job["silence_s"])
    if job["kind"] == "check":
        from agspeed.launch.check import facts  # not above: its imports would make each start slower

        link.send("ready", _description(""))
        facts.answer(link)
    if job["kind"] == "install":
        from agspeed.launch.install import installer

        link.send("ready", _description(""))
        installer.run(job, link)
        link.send("over", 0)
        return
    if job["kind"] == "elastic":
        from agspeed.launch import member_agent
        from agspeed.launch.attach import relay

        if job["id"] is not None and relay.settle(job, link):
            return
    described = _description(_prepare(job))
    link.send("ready", described)
    with _key(job["key"]) as (of_key, inherited), exchange.receive(link, job["num_pieces"]) as argument:
        if job["kind"] == "elastic":
            member_agent.run(link, job, described, of_key, inherited, argument)
        else:
            with _answering(link, job["probe"]):
                started = link.wait_for("start")
            _run_ranks(link, job["command"], [each | of_key for each in started], inherited, argument)
    link.send("over", 0)


def _answering(link: LauncherLink, probe: Mapping[str, Any] | None) -> AbstractContextManager[None]:
    """Takes part in the probe of interfaces, if the job has one."""
    if probe is None:
        return contextlib.nullcontext()
    from agspeed.launch.reach.answer import answering  # not above: its imports would make each start slower

    return answering(link, probe)


def _run_ranks(
    link: LauncherLink,
    command: Sequence[str],
    variables: Sequence[Mapping[str, str]],
    inherited: Sequence[int],
    argument: int | None,
) -> None:
    ranks = range(len(variables))
    with Pipes() as pipes, exchange.Memory(argument, ranks) as memory:
        for rank in ranks:
            pipes.open(rank)
        whole = [{**each, **memory.variables(rank)} for rank, each in enumerate(variables)]
        passed = [*inherited, *memory.descriptors]
        with Ranks(command, whole, list(pipes.rank_ends.values()), passed) as running:
            pipes.close_rank_ends()
            _follow(link, running, pipes)
        for rank in ranks:
            for piece in pipes.rest(rank):
                link.send_piece(piece)
        memory.send(link)


def _follow(link: LauncherLink, ranks: Ranks, pipes: Pipes) -> None:
    """Passes output on until the ranks have ended."""
    has_told = False
    while not ranks.is_over:
        ready = link.poll([ranks.fileno(), *pipes.sources()])
        for source in ready.intersection(pipes.sources()):
            if (piece := pipes.take(source)) is not None:
                link.send_piece(piece)
        if ranks.fileno() in ready:
            ranks.note_events()
        if ranks.first_failed is not None and not has_told:
            has_told = True
            link.send("failed", list(ranks.first_failed))
        for kind, value, _ in link.received:
            if kind == "end":
                ranks.end()
            elif kind == "taken":
                pipes.open_windows(value)
        link.received = []


def _prepare(job: Mapping[str, Any]) -> str:
    """Makes this process's environment and folder the job's, if this host has the folder.

    Returns: the folder that is used instead, or an empty text. Raises: UserError if the command is not on this host.
    """
    os.environ.update(job["environment"])
    instead = ""
    try:
        os.chdir(job["folder"] or ".")
    except OSError:
        instead = os.getcwd()
    command = job["command"][0]
    if shutil.which(command) is None:
        is_path = os.sep in command and os.path.exists(command)
        reason = "it cannot be executed" if is_path else "No such file or directory"
        raise UserError(f"cannot start {command}: {reason}; check its name and path.")
    return instead


def _description(folder: str) -> dict[str, Any]:
    """Describes this host for the launcher. The addresses are both ends of ssh's connection.

    A pod that is reached without ssh finds its own address by its name, which Kubernetes writes into its /etc/hosts.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    own = ""
    if not words and "KUBERNETES_SERVICE_HOST" in os.environ:
        with contextlib.suppress(OSError):
            own = socket.gethostbyname(socket.gethostname())
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return {
        "version": __version__,
        "folder": folder,
        "port": port,  # free at the moment; rank 0 will listen there
        "launcher_address": words[0] if len(words) == 4 else "",
        "address": words[2] if len(words) == 4 else own,
    }


@contextlib.contextmanager
def _key(key: str | None) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Yields variables that name the key's file, and descriptors for ranks to inherit; empty without a key."""
    if key is None:
        yield {}, ()
        return
    descriptor = job_key.in_memory(key)
    try:
        yield {"AGSPEED_JOB_KEY_FILE": f"/proc/self/fd/{descriptor}"}, (descriptor,)
    finally:
        os.close(descriptor)


def main() -> int:
    """Runs the job that comes from stdin. Ranks and the keeper get neither this process's stdin nor its stdout."""
    link = LauncherLink(frames.Link(os.dup(0), os.dup(1), frames.MOST_LAUNCHER_BYTES))
    os.dup2(2, 1)
    error: AgspeedError | None = None
    try:
        _run(link)
    except AgspeedError as found:
        error = found
    except frames.ClosedError:
        return 1
    with contextlib.suppress(frames.ClosedError):
        link.say_goodbye(error)
    return 0
