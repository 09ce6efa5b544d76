# SPDX-License-Identifier: Apache-2.0
"""Runs a job: starts its ranks on their hosts, passes their output on, and decides how the job ends.

The first rank that fails ends the job. SIGHUP, SIGINT, SIGQUIT or SIGTERM to the launcher ends it, too, unless the
launcher was started with that signal ignored. When the launcher ends for any reason, its ranks and all processes that
they have started end with it (`agent.py`, `keeper.py`). If the launcher of an elastic job is killed, members go on for
a while (`attach/`).

Threading: the caller's thread does everything. Signals are handled only if it is the main thread.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agspeed.errors import AgspeedError
from agspeed.launch import hosts, job_key
from agspeed.launch.agents import Agents, Plan
from agspeed.launch.attach.identity import Identity
from agspeed.launch.discovery import Discovery
from agspeed.launch.exchange import Call
from agspeed.launch.members import ElasticPlan, Members
from agspeed.launch.output import Output
from agspeed.launch.placement import place
from agspeed.launch.ranks import ending
from agspeed.launch.reach.choice import INTERFACE_VARIABLES
from agspeed.launch.roster import HostPlan
from agspeed.launch.starters import Local, PodExec, Ssh
from agspeed.membership.coordinator import Limits

__all__ = ["Request", "run"]

_INTERRUPTED = 130
_PEER_TIMEOUT, _ELASTIC_PEER_TIMEOUT_MS = "AGSPEED_PEER_TIMEOUT_MS", "5000"  # others can go on without a silent peer
_INTERRUPTED_FLUSH_S = 1.0
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# Variables that belong to one host or one login, so that other hosts do not get them.
_OF_ONE_HOST = frozenset(
    (
        # keep-sorted
        "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY",
        "HOME",
        "HOSTNAME",
        "LOGNAME",
        "MAIL",
        "OLDPWD",
        "PWD",
        "SHELL",
        "SHLVL",
        "TMPDIR",
        "USER",
        "XAUTHORITY",
        "_",
    )
)
_GROUPS_OF_ONE_HOST = ("BASH_FUNC_", "SSH_", "XDG_")


@dataclass(frozen=True)
class Request:
    """The job to start."""

    num_ranks: int
    command: Sequence[str]
    variables: Mapping[str, str]
    """Added to the variables of this process and to the variables that say which rank a process is."""
    output_folder: Path | None = None
    """The folder to which rank.N/stdout and stderr are written as well; None for no files."""
    has_time: bool = False
    hosts: Sequence[hosts.Host] = ()
    """Where the ranks run; none for this host."""
    remote: Ssh | PodExec = field(default_factory=Ssh)
    """How other hosts are reached."""
    master_address: str | None = None
    """An address of the first host; None for the one that ssh has used."""
    start_timeout_s: float = 30.0
    """How long other hosts may take until they are ready."""
    limits: Limits | None = None
    """How many members an elastic job may have; None for a job of a fixed size."""
    identity: Identity | None = None
    """The name of an elastic job, which must have one; None for a job of a fixed size."""
    most_resets: int | None = None
    """How often the members of an elastic job may change; None for any number."""
    discovery_script: Path | None = None
    """It prints the hosts of an elastic job. `hosts` is empty then."""
    slots_per_host: int | None = None
    """The slots of hosts for which the script prints no number; None if it has to."""
    pause_s: tuple[float, float] = (1.0, 60.0)
    """The shortest and the longest time for which a host of an elastic job stays unused after a failure."""
    call: Call | None = None
    """The call that the ranks make by the command; None if they run the command only."""


def run(request: Request) -> int:
    """Starts the ranks and waits for them.

    Returns: 0, the status of the first rank that failed (128 + N for signal N), or 130 after a signal to the launcher.
    Raises: UserError for a command that cannot be started, for files that cannot be made, and for too few slots;
    AgspeedError for a host that cannot be reached, or is lost.
    """
    is_interrupted, error = False, None
    goes_on = request.identity is not None and request.identity.is_attaching
    with Output(request.num_ranks, request.output_folder, request.has_time, goes_on) as output, _Signals() as signals:
        agents = _agents(request, output)
        try:
            with agents:
                is_interrupted = _follow(agents, output, signals)
        except AgspeedError as found:
            error = found
        output.finish()
        for sentence in agents.notes:
            output.write_note(sentence)
        failed = None if is_interrupted or error else agents.first_failed
        if failed is not None:
            output.write_report(agents.name_of(failed[0]), failed[0], ending(failed[1]))
        _flush(output, signals)
    if error is not None:
        raise error
    if failed is None:
        return _INTERRUPTED if is_interrupted else 0
    return 128 - failed[1] if failed[1] < 0 else failed[1]


def _agents(request: Request, output: Output) -> Agents | Members:
    """Returns what runs the job: a fixed number of ranks, or members."""
    if request.limits is None:
        return _ranks(request, output)
    assert request.identity is not None, "an elastic job has a name"
    return _members(request, request.limits, request.identity, output)


def _ranks(request: Request, output: Output) -> Agents:
    shares = place(request.hosts or hosts.local(request.num_ranks), request.num_ranks)
    used = [share.host for share in shares]
    job = _job_of(request, _key(used))
    plan = Plan(
        shares=shares,
        starters=[_starter(request, host) for host in used],
        jobs=[job(host) for host in used],
        variables=request.variables,
        master_address=request.master_address,
        start_timeout_s=request.start_timeout_s,
        call=request.call,
        probes=_probes(request),
    )
    return Agents(plan, output)


def _members(request: Request, limits: Limits, identity: Identity, output: Output) -> Members:
    script, slots = request.discovery_script, request.slots_per_host
    named = request.hosts if script is not None else request.hosts or hosts.local(limits.most)
    job = _job_of(request, _key(None if script is not None else named))
    plan = HostPlan(
        hosts=named,
        discovery=None if script is None else Discovery(script, slots),
        starter=lambda host: _starter(request, host),
        job=lambda host: {**job(host), **identity.words(host.name)},
        start_timeout_s=request.start_timeout_s,
        pause_s=request.pause_s,
        is_attaching=identity.is_attaching,
        call=request.call,
        probes=_probes(request),
    )
    variables = {_PEER_TIMEOUT: os.environ.get(_PEER_TIMEOUT, _ELASTIC_PEER_TIMEOUT_MS), **request.variables}
    return Members(ElasticPlan(identity, plan, variables, limits, request.most_resets), output)


def _probes(request: Request) -> bool:
    """Returns whether the interfaces of hosts are probed: a choice of the user's stays."""
    return not any(name in request.variables or name in os.environ for name in INTERFACE_VARIABLES)


def _starter(request: Request, host: hosts.Host) -> Local | PodExec | Ssh:
    return Local() if host.is_local else request.remote


def _job_of(request: Request, key: str | None) -> Callable[[hosts.Host], Mapping[str, Any]]:
    """Returns the agents' "job", by host."""
    of_others, kind = _environment_of_others(), "fixed" if request.limits is None else "elastic"
    job = {"kind": kind, "command": list(request.command), "folder": _folder(), "key": key}
    return lambda host: {**job, "environment": {} if host.is_local else of_others}


def _key(used: Sequence[hosts.Host] | None) -> str | None:
    """Returns the job's key; None if the user has set one that all ranks inherit. used: None if any host may come."""
    if not any(os.environ.get(name) for name in job_key.NAMES):
        return job_key.new()
    return None if used is not None and all(host.is_local for host in used) else job_key.own(os.environ)


def _environment_of_others() -> dict[str, str]:
    """Returns the variables of this process that ranks on other hosts get. Keys of jobs are not among them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_GROUPS_OF_ONE_HOST)}
    return {name: value for name, value in kept.items() if name not in _OF_ONE_HOST.union(job_key.NAMES)}


def _folder() -> str:
    """The working folder; empty if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _follow(agents: Agents | Members, output: Output, signals: _Signals) -> bool:
    """Passes output on until the job is over. Returns: whether a signal has ended it, not a rank."""
    is_interrupted = False
    while not agents.are_over:
        ready = output.wait(agents.events() | {signals.fileno(): select.POLLIN}, agents.seconds_left())
        if signals.fileno() in ready:
            signals.take()
        if signals.have_come and not is_interrupted and agents.first_failed is None:
            is_interrupted = True
            agents.end()
        agents.note(ready)
    return is_interrupted


def _flush(output: Output, signals: _Signals) -> None:
    """Waits until the reader has taken all output; after a signal only for a short time."""
    until = time.monotonic() + _INTERRUPTED_FLUSH_S if signals.have_come else math.inf
    while output.is_pending and time.monotonic() < until:
        if output.wait({signals.fileno(): select.POLLIN}, until - time.monotonic()):
            signals.take()
            if signals.have_come:
                until = min(until, time.monotonic() + _INTERRUPTED_FLUSH_S)


class _Signals:
    """Notes the signals that end a job, while the context is open."""

    have_come = False

    def __enter__(self) -> Self:
        self._wake, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_listening = threading.current_thread() is threading.main_thread()
        if self._is_listening:
            self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            caught = [each for each in _SIGNALS if signal.getsignal(each) not in (None, signal.SIG_IGN)]
            self._before = {each: signal.signal(each, self._note) for each in caught}
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_listening:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._wake)
        os.close(self._write)

    def fileno(self) -> int:
        """A descriptor that is readable when a signal has come, even one that does not end the job."""
        return self._wake

    def take(self) -> None:
        """Clears `fileno` until the next signal comes."""
        os.read(self._wake, 1 << 16)

    def _note(self, *_: object) -> None:
        self.have_come = True
